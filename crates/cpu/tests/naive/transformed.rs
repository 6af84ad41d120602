//! What the tests of Winograd's and of Fourier's convolutions have in common.

use super::{Case, Random, assert_untouched_outside, buffer, inside, inside_wide};
use partita_cpu::{Call, Canceled, Convolution, Grid, Team, Window};

/// Elements behind the scratch that nobody may write.
const GUARD: usize = 4096;

/// One of this kernel at stride 1.
pub fn convolution(kernel: [usize; 3]) -> Convolution {
    let window = Window {
        kernel,
        stride: [1; 3],
        dilation: [1; 3],
    };
    Convolution { window, groups: 1 }
}

/// A call with exactly the scratch it asks for, at any alignment.
pub fn call<R>(
    team: &mut Team,
    scratch: usize,
    body: impl FnOnce(&mut Call) -> Result<R, Canceled>,
) -> R {
    let mut room = vec![f32::NAN; 1 + scratch + GUARD];
    room[1 + scratch..].fill(7.0);
    let done = body(&mut Call {
        team,
        scratch: &mut room[1..1 + scratch],
        progress: &mut || true,
    });
    let guard = &room[1 + scratch..];
    assert!(
        guard.iter().all(|a| *a == 7.0),
        "written behind the scratch"
    );
    done.expect("nobody cancels")
}

/// A case with values of mean zero and variance 1 / 12.
pub fn filled(
    random: &mut Random,
    conv: Convolution,
    (c, f): (usize, usize),
    out: [usize; 3],
) -> Case {
    let n = random.within(1, 2);
    let xg = random.grid(n, conv.window.input_extent(out), c);
    let yg = random.grid(n, out, f);
    let x = buffer(&xg, || random.unit() - 0.5);
    let dy = buffer(&yg, || random.unit() - 0.5);
    let w = (0..conv.weight_elements(c, f)).map(|_| random.unit() - 0.5);
    let w = w.collect();
    Case {
        conv,
        xg,
        yg,
        x,
        dy,
        w,
    }
}

/// Root mean square error over the root mean square of the exact values, or of sums of `terms`
/// products of random values where that is larger: at borders there are fewer terms, and the error
/// is that of the tile.
pub fn error(got: &[f64], want: &[f64], terms: usize) -> f64 {
    let square = |sum: f64, a: f64| sum + a * a;
    let errors = got.iter().zip(want).map(|(got, want)| got - want);
    let (error, norm) = (
        errors.fold(0.0, square),
        want.iter().copied().fold(0.0, square),
    );
    let expected = want.len() as f64 * terms as f64 / 144.0;
    (error / norm.max(expected)).sqrt()
}

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// The box of a buffer against values by offset.
pub fn box_error(g: &Grid, got: &[f32], want: &[f64], terms: usize) -> f64 {
    assert_untouched_outside(g, got);
    error(&wide(&inside(g, got)), &inside_wide(g, want), terms)
}
