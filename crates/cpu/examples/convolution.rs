//! Times single convolutions that are asked for line by line, as the record of all convolutions does.
//!
//! `cargo run --release -p partita-cpu --example convolution -- [threads [algorithm [level [bf16]]]]`
//!
//! The algorithm is `direct`, that of Winograd by its tiles, `two`, `four` or `two-four`, or `fourier`; the
//! level is `avx2` or another that the processor has, by default its highest. With `bf16`, activations are in bf16.
//!
//! A line "n c f d h w kd kh kw sd sh sw pd ph pw dilation groups direction repeats" on standard
//! input (d h w without padding; direction `forward`, `backward_data` or `backward_weight`) is
//! answered by {"seconds": [...], "workspace_bytes": ...}, after one run that does not count, or by
//! {"absent": true} where the algorithm has no kernel of the convolution; a line `machine` by the
//! rates of multiply-adds in registers and of a triad, all threads at work, and `peak` by the first
//! alone, which is quick; a line that is not understood by {"error": ...}. The first line out is
//! {"ready": ...}.

use half::bf16;
use partita_cpu::{
    Call, Canceled, Convolution, Epilogue, Grid, Level, Team, View, ViewMut, Weights, Window,
    WinogradTile, Work, conv_backward_data, conv_backward_data_bf16, conv_backward_data_scratch,
    conv_backward_data_scratch_bf16, conv_backward_weight, conv_backward_weight_bf16,
    conv_backward_weight_scratch, conv_backward_weight_scratch_bf16, conv_forward,
    conv_forward_bf16, conv_forward_scratch, conv_forward_scratch_bf16, fourier_backward_data,
    fourier_backward_data_scratch, fourier_backward_weight, fourier_backward_weight_scratch,
    fourier_forward, fourier_forward_scratch, fourier_offers, multiply_adds,
    winograd_backward_data, winograd_backward_data_scratch, winograd_backward_weight,
    winograd_backward_weight_scratch, winograd_forward, winograd_forward_scratch, winograd_offers,
};
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// Elements of each array of the triad: 64 MiB, beyond the caches.
const TRIAD_ELEMENTS: usize = 16 << 20;

/// Repeats of the triad, of which the best counts.
const TRIAD_REPEATS: usize = 10;

/// Multiply-adds of a chain in one repeat, about a millisecond, shorter than a time slice.
const PEAK_ROUNDS: u64 = 250_000;

/// Repeats of the multiply-adds.
const PEAK_REPEATS: usize = 100;

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1);
    let threads = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    let name = words.next().unwrap_or_else(|| "direct".to_owned());
    let algorithm = Algorithm::parse(&name).map_err(std::io::Error::other)?;
    let level = words
        .next()
        .map_or(Ok(Level::detect()), |word| level(&word));
    let level = level.map_err(std::io::Error::other)?;
    let is_bf16 = words.next().is_some_and(|word| word == "bf16");
    // As ranks do; otherwise a short kernel ends before the system has given the threads two cores.
    let team = Team::on_first_cores(threads, level);
    let mut team = team.map_err(std::io::Error::other)?;
    team.spin_for(Duration::from_millis(1));
    let mut out = std::io::stdout();
    let version = env!("CARGO_PKG_VERSION");
    writeln!(
        out,
        "{{\"ready\": {{\"version\": \"{version}\", \"level\": \"{level:?}\", \
         \"algorithm\": \"{name}\", \"threads\": {threads}}}}}"
    )?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = match line.trim() {
            "" => continue,
            "quit" => break,
            "machine" => machine(threads, level),
            "peak" => format!("{{\"peak_gflops\": {:.3}}}", peak(threads, level)),
            asked => Asked::parse(asked)
                .and_then(|asked| asked.time(&mut team, algorithm, is_bf16))
                .unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}")),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// The instruction level of a name.
fn level(name: &str) -> Result<Level, String> {
    let level = Level::named(name).filter(|level| level.available());
    level.ok_or_else(|| format!("this processor has no level {name}"))
}

/// How a convolution is computed.
#[derive(Clone, Copy)]
enum Algorithm {
    Direct,
    Winograd(WinogradTile),
    Fourier,
}

impl Algorithm {
    fn parse(name: &str) -> Result<Self, String> {
        match name {
            "direct" => Ok(Self::Direct),
            "two" => Ok(Self::Winograd(WinogradTile::Two)),
            "four" => Ok(Self::Winograd(WinogradTile::Four)),
            "two-four" => Ok(Self::Winograd(WinogradTile::TwoFour)),
            "fourier" => Ok(Self::Fourier),
            _ => Err(format!("no algorithm {name}")),
        }
    }

    /// In two dims, `two-four` is `four`.
    fn offers(self, asked: &Asked) -> bool {
        let is_2d = asked.conv.window.kernel[0] == 1;
        match self {
            Self::Direct => true,
            Self::Winograd(WinogradTile::TwoFour) if is_2d => false,
            Self::Winograd(_) => winograd_offers(&asked.conv, asked.c, asked.f),
            Self::Fourier => fourier_offers(&asked.conv, asked.c, asked.f),
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Forward,
    BackwardData,
    BackwardWeight,
}

/// A convolution, a direction, and how often to run it.
struct Asked {
    samples: usize,
    c: usize,
    f: usize,
    /// Without padding.
    input: [usize; 3],
    output: [usize; 3],
    padding: [usize; 3],
    conv: Convolution,
    direction: Direction,
    repeats: usize,
}

impl Asked {
    fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [numbers @ .., direction, repeats] = words.as_slice() else {
            return Err(format!("{} words, 19 are needed", words.len()));
        };
        let direction = match *direction {
            "forward" => Direction::Forward,
            "backward_data" => Direction::BackwardData,
            "backward_weight" => Direction::BackwardWeight,
            _ => return Err(format!("no direction {direction:?}").replace('"', "'")),
        };
        let number = |word: &&str| {
            word.parse::<usize>()
                .map_err(|_| format!("{word} in {line}"))
        };
        let repeats = number(repeats)?;
        let numbers: Vec<usize> = numbers.iter().map(number).collect::<Result<_, _>>()?;
        let &[
            n,
            c,
            f,
            d,
            h,
            w,
            kd,
            kh,
            kw,
            sd,
            sh,
            sw,
            pd,
            ph,
            pw,
            dilation,
            groups,
        ] = numbers.as_slice()
        else {
            return Err(format!("{} words, 19 are needed", words.len()));
        };
        let (input, padding) = ([d, h, w], [pd, ph, pw]);
        let window = Window {
            kernel: [kd, kh, kw],
            stride: [sd, sh, sw],
            dilation: [dilation; 3],
        };
        let one = window.input_extent([1; 3]);
        let fits = (0..3).all(|i| input[i] + 2 * padding[i] >= one[i] && window.stride[i] > 0);
        if !fits || dilation == 0 || groups == 0 || c % groups + f % groups > 0 {
            return Err(format!("{line}: no such convolution"));
        }
        let output = |i: usize| (input[i] + 2 * padding[i] - one[i]) / window.stride[i] + 1;
        Ok(Self {
            samples: n,
            c,
            f,
            input,
            output: std::array::from_fn(output),
            padding,
            conv: Convolution { window, groups },
            direction,
            repeats,
        })
    }

    fn time(&self, team: &mut Team, algorithm: Algorithm, is_bf16: bool) -> Result<String, String> {
        let is_absent = is_bf16 && !matches!(algorithm, Algorithm::Direct);
        if is_absent || !algorithm.offers(self) {
            return Ok("{\"absent\": true}".to_owned());
        }
        if is_bf16 {
            return match self.direction {
                Direction::Forward => self.forward_bf16(team),
                Direction::BackwardData => self.backward_data_bf16(team),
                Direction::BackwardWeight => self.backward_weight_bf16(team),
            };
        }
        match self.direction {
            Direction::Forward => self.forward(team, algorithm),
            Direction::BackwardData => self.backward_data(team, algorithm),
            Direction::BackwardWeight => self.backward_weight(team, algorithm),
        }
    }

    /// The input with the padding that is read.
    fn padded(&self) -> Grid {
        let extent = self.conv.window.input_extent(self.output);
        Grid::dense(self.samples, extent, self.c)
    }

    fn outputs(&self) -> Grid {
        Grid::dense(self.samples, self.output, self.f)
    }

    fn weights(&self) -> Vec<f32> {
        ramp(self.conv.weight_elements(self.c, self.f))
    }

    fn forward(&self, team: &mut Team, algorithm: Algorithm) -> Result<String, String> {
        let (xg, yg) = (self.padded(), self.outputs());
        let (x, w, mut y) = (ramp(xg.elements()), self.weights(), ramp(yg.elements()));
        let (c, f, positions) = (self.c, self.f, yg.positions());
        let (conv, kind) = (&self.conv, team.kind());
        let scratch = match algorithm {
            Algorithm::Direct => conv_forward_scratch(kind, conv, c, f, positions),
            Algorithm::Winograd(tile) => winograd_forward_scratch(kind, tile, conv, c, &yg, false),
            Algorithm::Fourier => fourier_forward_scratch(kind, conv, c, &yg),
        };
        self.repeat(team, scratch, |call| {
            let (x, y) = (View::new(&x, &xg), ViewMut::new(&mut y, &yg));
            let (plain, w, none) = (&w, Weights::Plain(&w), Epilogue::default());
            match algorithm {
                Algorithm::Direct => conv_forward(call, x, w, y, conv, false, none),
                Algorithm::Winograd(tile) => {
                    winograd_forward(call, tile, x, w, y, conv, false, none)
                }
                Algorithm::Fourier => fourier_forward(call, x, plain, y, conv, false, none),
            }
        })
    }

    fn backward_data(&self, team: &mut Team, algorithm: Algorithm) -> Result<String, String> {
        let (dy, yg, shift) = self.padded_gradient();
        let xg = Grid::dense(self.samples, self.input, self.c);
        self.data_gradient(team, algorithm, (&dy, &yg), &xg, shift)
    }

    /// As programs do it: dy is padded with zeros where the window needs it, dx is not. With the shift of dx.
    fn padded_gradient(&self) -> (Vec<f32>, Grid, [i64; 3]) {
        let window = &self.conv.window;
        let reach = |i: usize| (window.kernel[i] - 1) * window.dilation[i];
        let low: [usize; 3] =
            std::array::from_fn(|i| reach(i).saturating_sub(self.padding[i]) / window.stride[i]);
        let high: [usize; 3] = std::array::from_fn(|i| {
            let last = (self.padding[i] + self.input[i] - 1) / window.stride[i];
            last.saturating_sub(self.output[i] - 1)
        });
        let padded = std::array::from_fn(|i| low[i] + self.output[i] + high[i]);
        let shift = std::array::from_fn(|i| (self.padding[i] + low[i] * window.stride[i]) as i64);
        let yg = Grid::dense(self.samples, padded, self.f);
        let mut dy = vec![0.0; yg.elements()];
        let values = ramp(self.output[2] * self.f);
        for n in 0..self.samples {
            for d in 0..self.output[0] {
                for h in 0..self.output[1] {
                    let at = ((n * padded[0] + d + low[0]) * padded[1] + h + low[1]) * padded[2];
                    let at = (at + low[2]) * self.f;
                    dy[at..at + values.len()].copy_from_slice(&values);
                }
            }
        }
        (dy, yg, shift)
    }

    /// From a padded gradient of the outputs.
    fn data_gradient(
        &self,
        team: &mut Team,
        algorithm: Algorithm,
        (dy, yg): (&[f32], &Grid),
        xg: &Grid,
        shift: [i64; 3],
    ) -> Result<String, String> {
        let (w, mut dx) = (self.weights(), ramp(xg.elements()));
        let (c, f, positions) = (self.c, self.f, xg.positions());
        let (conv, kind) = (&self.conv, team.kind());
        let scratch = match algorithm {
            Algorithm::Direct => conv_backward_data_scratch(kind, conv, c, f, positions),
            Algorithm::Winograd(tile) => {
                winograd_backward_data_scratch(kind, tile, conv, f, xg, false)
            }
            Algorithm::Fourier => fourier_backward_data_scratch(kind, conv, f, xg),
        };
        self.repeat(team, scratch, |call| {
            let (dy, dx) = (View::new(dy, yg), ViewMut::new(&mut dx, xg));
            let (plain, w, none) = (&w, Weights::Plain(&w), Epilogue::default());
            match algorithm {
                Algorithm::Direct => conv_backward_data(call, dy, w, dx, conv, shift, false, none),
                Algorithm::Winograd(tile) => {
                    winograd_backward_data(call, tile, dy, w, dx, conv, shift, false, none)
                }
                Algorithm::Fourier => {
                    fourier_backward_data(call, dy, plain, dx, conv, shift, false, none)
                }
            }
        })
    }

    fn backward_weight(&self, team: &mut Team, algorithm: Algorithm) -> Result<String, String> {
        let (xg, yg) = (self.padded(), self.outputs());
        let (x, dy, mut dw) = (ramp(xg.elements()), ramp(yg.elements()), self.weights());
        let (conv, kind) = (&self.conv, team.kind());
        let scratch = match algorithm {
            Algorithm::Direct => conv_backward_weight_scratch(kind, conv, &xg, self.f),
            Algorithm::Winograd(tile) => {
                winograd_backward_weight_scratch(kind, tile, conv, self.c, &yg)
            }
            Algorithm::Fourier => fourier_backward_weight_scratch(kind, conv, self.c, &yg),
        };
        self.repeat(team, scratch, |call| {
            let (x, dy) = (View::new(&x, &xg), View::new(&dy, &yg));
            match algorithm {
                Algorithm::Direct => conv_backward_weight(call, x, dy, &mut dw, None, conv, false),
                Algorithm::Winograd(tile) => {
                    winograd_backward_weight(call, tile, x, dy, &mut dw, None, conv, false)
                }
                Algorithm::Fourier => {
                    fourier_backward_weight(call, x, dy, &mut dw, None, conv, false)
                }
            }
        })
    }

    fn forward_bf16(&self, team: &mut Team) -> Result<String, String> {
        let (xg, yg) = (self.padded(), self.outputs());
        let x = narrow(&ramp(xg.elements()));
        let (w, mut y) = (self.weights(), narrow(&ramp(yg.elements())));
        let (c, f, positions) = (self.c, self.f, yg.positions());
        let (conv, kind) = (&self.conv, team.kind());
        let scratch = conv_forward_scratch_bf16(kind, conv, c, f, positions, false);
        self.repeat(team, scratch, |call| {
            let (x, y) = (View::new(&x, &xg), ViewMut::new(&mut y, &yg));
            let (w, none) = (Weights::Plain(&w), Epilogue::default());
            conv_forward_bf16(call, x, w, y, conv, false, none)
        })
    }

    fn backward_data_bf16(&self, team: &mut Team) -> Result<String, String> {
        let (dy, yg, shift) = self.padded_gradient();
        let xg = Grid::dense(self.samples, self.input, self.c);
        let (dy, w, mut dx) = (narrow(&dy), self.weights(), narrow(&ramp(xg.elements())));
        let (c, f, positions) = (self.c, self.f, xg.positions());
        let (conv, kind) = (&self.conv, team.kind());
        let scratch = conv_backward_data_scratch_bf16(kind, conv, c, f, positions, false);
        self.repeat(team, scratch, |call| {
            let (dy, dx) = (View::new(&dy, &yg), ViewMut::new(&mut dx, &xg));
            let (w, none) = (Weights::Plain(&w), Epilogue::default());
            conv_backward_data_bf16(call, dy, w, dx, conv, shift, false, none)
        })
    }

    fn backward_weight_bf16(&self, team: &mut Team) -> Result<String, String> {
        let (xg, yg) = (self.padded(), self.outputs());
        let (x, dy) = (narrow(&ramp(xg.elements())), narrow(&ramp(yg.elements())));
        let (conv, kind, mut dw) = (&self.conv, team.kind(), self.weights());
        let scratch = conv_backward_weight_scratch_bf16(kind, conv, &xg, self.f);
        self.repeat(team, scratch, |call| {
            let (x, dy) = (View::new(&x, &xg), View::new(&dy, &yg));
            conv_backward_weight_bf16(call, x, dy, &mut dw, None, conv, false)
        })
    }

    fn repeat(
        &self,
        team: &mut Team,
        scratch: usize,
        mut run: impl FnMut(&mut Call) -> Result<Work, Canceled>,
    ) -> Result<String, String> {
        let mut workspace = vec![1.0; scratch];
        let mut progress = || true;
        let mut call = Call {
            team,
            scratch: &mut workspace,
            progress: &mut progress,
        };
        let mut seconds = Vec::with_capacity(self.repeats);
        for turn in 0..=self.repeats {
            let start = Instant::now();
            let work = run(&mut call).map_err(|error| error.to_string())?;
            let taken = start.elapsed().as_secs_f64();
            std::hint::black_box(work);
            if turn > 0 {
                seconds.push(format!("{taken:e}"));
            }
        }
        let seconds = seconds.join(", ");
        let bytes = 4 * scratch;
        Ok(format!(
            "{{\"seconds\": [{seconds}], \"workspace_bytes\": {bytes}}}"
        ))
    }
}

fn narrow(all: &[f32]) -> Vec<bf16> {
    all.iter().map(|a| bf16::from_f32(*a)).collect()
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.4995)
        .collect()
}

/// What all threads together do a second.
fn machine(threads: usize, level: Level) -> String {
    let (flops, bytes) = (peak(threads, level), triad(threads));
    format!("{{\"peak_gflops\": {flops:.3}, \"triad_gbytes\": {bytes:.3}}}")
}

/// GFLOP/s of multiply-adds in registers: the sum of what each thread does at its best, all at work.
fn peak(threads: usize, level: Level) -> f64 {
    let turn = || {
        let start = Instant::now();
        let work = multiply_adds(level, PEAK_ROUNDS);
        work.flops as f64 / start.elapsed().as_secs_f64() * 1e-9
    };
    let best = || (0..PEAK_REPEATS).map(|_| turn()).fold(0.0, f64::max);
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(best)).collect();
        let rates = started.into_iter().map(|one| one.join().unwrap_or(0.0));
        rates.sum()
    })
}

/// a = b + s * c, one stretch of the arrays for each thread. GB/s of the three arrays read or
/// written; what a write brings in first does not count.
fn triad(threads: usize) -> f64 {
    let part = TRIAD_ELEMENTS / threads;
    let one = |_| [0.5f32, 1.5, 2.5].map(|value| vec![value; part]);
    let mut arrays: Vec<[Vec<f32>; 3]> = (0..threads).map(one).collect();
    let mut rate = 0.0f64;
    for _ in 0..TRIAD_REPEATS {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for [a, b, c] in &mut arrays {
                scope.spawn(move || {
                    for ((a, b), c) in a.iter_mut().zip(&*b).zip(&*c) {
                        *a = b + 3.0 * c;
                    }
                    std::hint::black_box(a);
                });
            }
        });
        let bytes = 12 * part * threads;
        rate = rate.max(bytes as f64 / start.elapsed().as_secs_f64() * 1e-9);
    }
    rate
}
