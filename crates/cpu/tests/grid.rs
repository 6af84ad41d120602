//! Boxes, windows and weights whose sizes wrap around the address space are refused.

use crate::naive::call;
use partita_cpu::{
    Convolution, Epilogue, Grid, Level, PoolKind, PoolMask, Pooling, Team, View, ViewMut, Weights,
    Window, conv_backward_data, fill, pool_backward,
};

/// Two samples; the second begins one element before the first, in 64 bits.
fn wrapped() -> Grid {
    Grid {
        samples: 2,
        extent: [1; 3],
        channels: 4,
        pitch: [usize::MAX, 4, 4, 4],
    }
}

#[test]
#[should_panic(expected = "larger than the address space")]
fn a_span_that_wraps_is_no_view_to_write() {
    let (grid, mut data) = (wrapped(), [0.0; 8]);
    let mut team = Team::new(1, Level::Portable).expect("a team of one thread");
    call(&mut team, 0, |k| {
        fill(k, 1.0, ViewMut::new(&mut data[4..], &grid))
    });
}

#[test]
#[should_panic(expected = "larger than the address space")]
fn a_span_that_wraps_is_no_view_to_read() {
    let grid = wrapped();
    View::new(&[0.0; 8], &grid);
}

#[test]
#[should_panic(expected = "larger than the address space")]
fn elements_that_wrap_to_none_are_no_view() {
    // 2^64 positions at one place.
    let grid = Grid {
        samples: 1 << 32,
        extent: [1 << 32, 1, 1],
        channels: 1,
        pitch: [0; 4],
    };
    View::<f32>::new(&[], &grid);
}

#[test]
#[should_panic(expected = "no input extent")]
fn an_input_extent_does_not_wrap() {
    let window = Window {
        kernel: [1, 1, 3],
        stride: [1; 3],
        dilation: [1, 1, 1 << 63],
    };
    // It would be that of one tap.
    window.input_extent([1, 1, 5]);
}

/// Window of one tap; one element in, one out.
fn window() -> Window {
    Window {
        kernel: [1; 3],
        stride: [1; 3],
        dilation: [1; 3],
    }
}

#[test]
#[should_panic(expected = "larger than the address space")]
fn the_number_of_weights_does_not_wrap() {
    // 2^64 taps.
    let conv = Convolution {
        window: Window {
            kernel: [1 << 32, 1 << 32, 1],
            ..window()
        },
        groups: 1,
    };
    let (grid, mut dx) = (Grid::dense(1, [1; 3], 1), [0.0]);
    let mut team = Team::new(1, Level::Portable).expect("a team of one thread");
    let (dy, dx) = (View::new(&[1.0], &grid), ViewMut::new(&mut dx, &grid));
    let (w, epilogue) = (Weights::Plain(&[]), Epilogue::default());
    call(&mut team, 0, |k| {
        conv_backward_data(k, dy, w, dx, &conv, [0; 3], false, epilogue)
    });
}

fn pool_back(shift: i64, at: usize) {
    let pooling = Pooling {
        kind: PoolKind::Max,
        window: window(),
        shift: [0, 0, shift],
    };
    let (grid, mut dx) = (Grid::dense(1, [1; 3], 1), [0.0]);
    let mut team = Team::new(1, Level::Portable).expect("a team of one thread");
    let (x, dx) = (View::new(&[1.0], &grid), ViewMut::new(&mut dx, &grid));
    let mask = PoolMask {
        y: x,
        slope: 0.5,
        at: [at, 0, 0],
    };
    call(&mut team, 0, |k| {
        pool_backward(k, Some(x), x, dx, &pooling, false, Some(mask))
    });
}

#[test]
#[should_panic(expected = "must be below 2^60")]
fn a_shift_does_not_wrap() {
    pool_back(i64::MIN, 0);
}

#[test]
#[should_panic(expected = "mask of")]
fn the_end_of_a_mask_does_not_wrap() {
    pool_back(0, usize::MAX);
}

#[test]
fn a_mask_inside_is_applied() {
    pool_back(0, 0);
}

#[test]
fn boxes_without_elements_have_no_span() {
    let grid = Grid {
        samples: 0,
        ..wrapped()
    };
    assert_eq!(grid.span(), 0);
    assert_eq!(Grid::dense(2, [3, 4, 5], 6).span(), 720);
}
