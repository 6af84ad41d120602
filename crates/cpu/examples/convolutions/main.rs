//! Speed of the convolutions of some networks, one JSON line for each layer and direction, after
//! one line on the machine. Times are in seconds, rates in GFLOP/s and GB/s.
//!
//! `cargo run --release -p partita-cpu --example convolutions -- [--threads N] [--level L]
//! [--networks A,B] [--layers A,B] [--directions forward,data,weight] [--seconds S] [--repeats N]
//! [--algorithms direct,two,four,two-four] [--clock wall|cpu] [--epilogue none|relu|sums] [--table]`
//!
//! Several algorithms are timed in turns; those but the direct one are of Winograd, by their tiles.
//! Rates count the flops of the direct one.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool of developers reads their own files"
)]

mod layers;

use layers::{Layer, layers};
use partita_cpu::{
    Call, Convolution, Epilogue, Grid, Level, Summed, Sums, Team, View, ViewMut, Weights, Window,
    WinogradTile, conv_backward_data, conv_backward_data_scratch, conv_backward_weight,
    conv_backward_weight_scratch, conv_forward, conv_forward_scratch, multiply_adds, sums_scratch,
    winograd_backward_data, winograd_backward_data_scratch, winograd_backward_weight,
    winograd_backward_weight_scratch, winograd_forward, winograd_forward_scratch, winograd_offers,
};
use std::time::{Duration, Instant};

const DIRECTIONS: [&str; 3] = ["forward", "data", "weight"];
/// How long threads spin for the next kernel, as in a training on cores of their own.
const SPIN: Duration = Duration::from_millis(1);

/// How a convolution is computed.
#[derive(Clone, Copy, PartialEq)]
enum Algorithm {
    Direct,
    Winograd(WinogradTile),
}

impl Algorithm {
    const ALL: [Algorithm; 4] = [
        Algorithm::Direct,
        Algorithm::Winograd(WinogradTile::Two),
        Algorithm::Winograd(WinogradTile::Four),
        Algorithm::Winograd(WinogradTile::TwoFour),
    ];

    fn name(self) -> &'static str {
        match self {
            Algorithm::Direct => "direct",
            Algorithm::Winograd(WinogradTile::Two) => "two",
            Algorithm::Winograd(WinogradTile::Four) => "four",
            Algorithm::Winograd(WinogradTile::TwoFour) => "two-four",
        }
    }

    fn offers(self, layer: &Layer, conv: &Convolution) -> bool {
        match self {
            Algorithm::Direct => true,
            Algorithm::Winograd(_) => winograd_offers(conv, layer.c, layer.f),
        }
    }
}

/// Name of the total over layers, each with its fastest algorithm.
const FASTEST: &str = "fastest";

struct Options {
    algorithms: Vec<Algorithm>,
    threads: usize,
    level: Level,
    networks: Option<String>,
    layers: Option<String>,
    directions: Option<String>,
    /// Least time in seconds, and least number of repeats, for each layer and direction.
    seconds: f64,
    repeats: usize,
    /// Time of the calling thread on a core, instead of wall time; for one thread only.
    cpu: bool,
    /// `relu`: with bias and leaky ReLU; `sums`: with the sums of a batch normalization.
    epilogue: String,
    table: bool,
}

fn main() {
    let options = options();
    // Before the team pins this thread, as the threads that they start would share its core.
    let (peak, triad) = (peak(&options), triad(&options));
    println!(
        "{{\"level\":\"{:?}\",\"threads\":{},\"peak_gflops\":{peak:.1},\"triad_gbs\":{triad:.1}}}",
        options.level, options.threads,
    );
    // As ranks do; otherwise a short kernel ends before the system has given the threads two cores.
    let team = Team::on_first_cores(options.threads, options.level);
    let mut team = team.unwrap_or_else(|e| panic!("cannot start: {e}"));
    team.spin_for(SPIN);
    let mut totals = Totals::new();
    for layer in layers() {
        if !chosen(&options.networks, layer.network) || !chosen(&options.layers, layer.name) {
            continue;
        }
        let (case, mut algorithms) = (Case::new(&layer), options.algorithms.clone());
        algorithms.retain(|algorithm| algorithm.offers(&layer, &case.conv));
        if algorithms.is_empty() {
            continue;
        }
        let results = case.run(&mut team, &options, &algorithms);
        for (direction, seconds) in results.into_iter().enumerate() {
            for (algorithm, seconds) in algorithms.iter().zip(&seconds) {
                let name = algorithm.name();
                report(&layer, direction, name, *seconds, peak, options.table);
            }
            let best = |all: &[(f64, f64)]| all.iter().map(|s| s.0).min_by(f64::total_cmp);
            if let (Some((best, _)), Algorithm::Direct) = (seconds.first(), algorithms[0]) {
                add(
                    &mut totals,
                    &layer,
                    Algorithm::Direct.name(),
                    direction,
                    *best,
                );
            }
            if let (Some(best), true) = (best(&seconds), options.algorithms.len() > 1) {
                add(&mut totals, &layer, FASTEST, direction, best);
            }
        }
    }
    print_totals(totals, peak);
}

/// Per network, algorithm and direction: flops and seconds of all its layers.
type Totals = Vec<(&'static str, &'static str, [(f64, f64); 3])>;

fn add(totals: &mut Totals, layer: &Layer, name: &'static str, direction: usize, best: f64) {
    let is_of = |t: &(&str, &str, _)| (t.0, t.1) == (layer.network, name);
    if !totals.iter().any(is_of) {
        totals.push((layer.network, name, [(0.0, 0.0); 3]));
    }
    if let Some((_, _, sums)) = totals
        .iter_mut()
        .find(|t| (t.0, t.1) == (layer.network, name))
    {
        sums[direction].0 += layer.count as f64 * flops(layer);
        sums[direction].1 += layer.count as f64 * best;
    }
}

fn print_totals(totals: Totals, peak: f64) {
    for (network, name, sums) in totals {
        for (direction, (flops, seconds)) in DIRECTIONS.iter().zip(sums) {
            if seconds > 0.0 {
                let rate = flops / seconds * 1e-9;
                println!(
                    "{{\"network\":\"{network}\",\"algorithm\":\"{name}\",\
                     \"direction\":\"{direction}\",\"flops\":{flops},\
                     \"seconds_best\":{seconds:.6},\"gflops\":{rate:.1},\"of_peak\":{:.3}}}",
                    rate / peak
                );
            }
        }
    }
}

fn options() -> Options {
    let mut options = Options {
        algorithms: vec![Algorithm::Direct],
        threads: 1,
        level: Level::detect(),
        networks: None,
        layers: None,
        directions: None,
        seconds: 0.3,
        repeats: 3,
        cpu: false,
        epilogue: "none".to_owned(),
        table: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--table" {
            options.table = true;
            continue;
        }
        let value = args
            .next()
            .unwrap_or_else(|| panic!("{name} without value"));
        let number = || {
            value
                .parse::<f64>()
                .unwrap_or_else(|e| panic!("{name} {value}: {e}"))
        };
        match name.as_str() {
            "--threads" => options.threads = number() as usize,
            "--seconds" => options.seconds = number(),
            "--repeats" => options.repeats = number() as usize,
            "--networks" => options.networks = Some(value),
            "--layers" => options.layers = Some(value),
            "--directions" => options.directions = Some(value),
            "--epilogue" => options.epilogue = value,
            "--algorithms" => {
                options.algorithms = Algorithm::ALL.to_vec();
                let names: Vec<&str> = value.split(',').collect();
                options.algorithms.retain(|a| names.contains(&a.name()));
                assert!(
                    names.len() == options.algorithms.len(),
                    "no algorithms {value}"
                );
            }
            "--clock" => options.cpu = value == "cpu",
            "--level" => {
                let named = |l: &Level| format!("{l:?}").eq_ignore_ascii_case(&value);
                let level = Level::ALL.into_iter().find(named);
                options.level = level.unwrap_or_else(|| panic!("no level {value}"));
            }
            _ => panic!("no option {name}"),
        }
    }
    options
}

fn chosen(list: &Option<String>, name: &str) -> bool {
    list.as_ref()
        .is_none_or(|l| l.split(',').any(|n| n == name))
}

fn flops(layer: &Layer) -> f64 {
    let out: usize = (0..3).map(|i| out(layer, i)).product();
    let volume: usize = layer.kernel.iter().product();
    (2 * layer.samples * out * volume * layer.c / layer.groups * layer.f) as f64
}

fn out(layer: &Layer, dim: usize) -> usize {
    let l = layer;
    (l.extent[dim] + 2 * l.padding[dim] - l.kernel[dim]) / l.stride[dim] + 1
}

fn report(
    layer: &Layer,
    direction: usize,
    algorithm: &str,
    (best, median): (f64, f64),
    peak: f64,
    table: bool,
) {
    let (l, flops) = (layer, flops(layer));
    let rate = flops / best * 1e-9;
    // The forward direction of a transposed convolution is the data direction of the convolution.
    let named = match (l.transposed, direction) {
        (true, 0) => DIRECTIONS[1],
        (true, 1) => DIRECTIONS[0],
        _ => DIRECTIONS[direction],
    };
    if table {
        println!(
            "{:12} {:12} {named:8} {algorithm:8} {:4}->{:4} @{:3} k{} s{} x{} {rate:6.1} GFLOP/s {:5.1} %",
            l.network,
            l.name,
            l.c,
            l.f,
            l.extent[2],
            l.kernel[2],
            l.stride[2],
            l.count,
            100.0 * rate / peak
        );
        return;
    }
    println!(
        "{{\"network\":\"{}\",\"layer\":\"{}\",\"direction\":\"{named}\",\"kernel\":\"{}\",\
         \"algorithm\":\"{algorithm}\",\
         \"samples\":{},\"c\":{},\"f\":{},\"extent\":{:?},\"window\":{:?},\"stride\":{:?},\
         \"padding\":{:?},\"groups\":{},\"transposed\":{},\"count\":{},\"flops\":{flops},\
         \"seconds_best\":{best:.6},\"seconds_median\":{median:.6},\"gflops\":{rate:.1},\
         \"of_peak\":{:.3}}}",
        l.network,
        l.name,
        DIRECTIONS[direction],
        l.samples,
        l.c,
        l.f,
        l.extent,
        l.kernel,
        l.stride,
        l.padding,
        l.groups,
        l.transposed,
        l.count,
        rate / peak
    );
}

/// The boxes of a layer: inputs with their padding, and for stride 1 a gradient with the padding
/// that makes it complete.
struct Case {
    conv: Convolution,
    xg: Grid,
    yg: Grid,
    dyg: Grid,
    dxg: Grid,
    shift: [i64; 3],
}

impl Case {
    fn new(l: &Layer) -> Case {
        let window = Window {
            kernel: l.kernel,
            stride: l.stride,
            dilation: [1; 3],
        };
        let outs: [usize; 3] = std::array::from_fn(|i| out(l, i));
        let full = Grid::dense(
            l.samples,
            std::array::from_fn(|i| l.extent[i] + 2 * l.padding[i]),
            l.c,
        );
        let xg = Grid {
            extent: window.input_extent(outs),
            ..full
        };
        // Padding of dy that makes the gradient complete.
        let dy_padding: [usize; 3] = std::array::from_fn(|i| match l.stride[i] {
            1 => l.kernel[i] - 1 - l.padding[i],
            _ => 0,
        });
        Case {
            conv: Convolution {
                window,
                groups: l.groups,
            },
            xg,
            yg: Grid::dense(l.samples, outs, l.f),
            dyg: Grid::dense(
                l.samples,
                std::array::from_fn(|i| outs[i] + 2 * dy_padding[i]),
                l.f,
            ),
            dxg: Grid::dense(l.samples, l.extent, l.c),
            shift: std::array::from_fn(|i| (l.padding[i] + l.stride[i] * dy_padding[i]) as i64),
        }
    }

    /// Best and median seconds of each algorithm, by direction; none of directions not asked for.
    fn run(
        &self,
        team: &mut Team,
        options: &Options,
        algorithms: &[Algorithm],
    ) -> [Vec<(f64, f64)>; 3] {
        let (c, f) = (self.xg.channels, self.yg.channels);
        let need = algorithms.iter().map(|a| self.scratch(team, *a)).max();
        let w = ramp(self.conv.weight_elements(c, f));
        let mut buffers = Buffers {
            scratch: vec![0.0; need.unwrap_or(0)],
            x: ramp(self.xg.span()),
            y: ramp(self.dyg.span()),
            dx: vec![0.0; self.dxg.span()],
            dw: w.clone(),
            w,
            bias: ramp(c.max(f)),
            sums: vec![0.0; 2 * c.max(f)],
        };
        std::array::from_fn(|direction| {
            if !chosen(&options.directions, DIRECTIONS[direction]) {
                return Vec::new();
            }
            time(options, algorithms.len(), |i| {
                self.run_once(team, options, &mut buffers, direction, algorithms[i]);
            })
        })
    }

    /// Scratch of all directions with sums.
    fn scratch(&self, team: &Team, algorithm: Algorithm) -> usize {
        let (conv, xg, yg, kind) = (&self.conv, &self.xg, &self.yg, team.kind());
        let (c, f) = (xg.channels, yg.channels);
        let need = match algorithm {
            Algorithm::Direct => [
                conv_forward_scratch(kind, conv, c, f, yg.positions()),
                conv_backward_data_scratch(kind, conv, c, f, self.dxg.positions()),
                conv_backward_weight_scratch(kind, conv, xg, f),
            ],
            Algorithm::Winograd(tile) => [
                winograd_forward_scratch(kind, tile, conv, c, yg, false),
                winograd_backward_data_scratch(kind, tile, conv, f, &self.dxg, false),
                winograd_backward_weight_scratch(kind, tile, conv, c, yg),
            ],
        };
        let sums = sums_scratch(kind, conv, c).max(sums_scratch(kind, conv, f));
        need.into_iter().max().unwrap_or(0) + sums
    }

    fn run_once(
        &self,
        team: &mut Team,
        options: &Options,
        buffers: &mut Buffers,
        direction: usize,
        algorithm: Algorithm,
    ) {
        let (conv, shift, b) = (&self.conv, self.shift, buffers);
        let (mut go, w) = (|| true, Weights::Plain(&b.w));
        let call = &mut Call {
            team,
            scratch: &mut b.scratch,
            progress: &mut go,
        };
        let x = View::new(&b.x, &self.xg);
        let channels = [self.yg.channels, self.xg.channels, 0][direction];
        let epilogue = epilogue(options, &b.bias, &mut b.sums[..2 * channels]);
        let work = match direction {
            0 => {
                let y = ViewMut::new(&mut b.y, &self.yg);
                match algorithm {
                    Algorithm::Direct => conv_forward(call, x, w, y, conv, false, epilogue),
                    Algorithm::Winograd(tile) => {
                        winograd_forward(call, tile, x, w, y, conv, false, epilogue)
                    }
                }
            }
            1 => {
                let dy = View::new(&b.y, &self.dyg);
                let dx = ViewMut::new(&mut b.dx, &self.dxg);
                match algorithm {
                    Algorithm::Direct => {
                        conv_backward_data(call, dy, w, dx, conv, shift, false, epilogue)
                    }
                    Algorithm::Winograd(tile) => {
                        winograd_backward_data(call, tile, dy, w, dx, conv, shift, false, epilogue)
                    }
                }
            }
            _ => {
                let (dy, dw) = (View::new(&b.y, &self.yg), &mut b.dw);
                match algorithm {
                    Algorithm::Direct => conv_backward_weight(call, x, dy, dw, None, conv, false),
                    Algorithm::Winograd(tile) => {
                        winograd_backward_weight(call, tile, x, dy, dw, None, conv, false)
                    }
                }
            }
        };
        work.unwrap_or_else(|e| panic!("{e}"));
    }
}

/// What the kernels read and write.
struct Buffers {
    scratch: Vec<f32>,
    x: Vec<f32>,
    w: Vec<f32>,
    /// Outputs, and their gradient.
    y: Vec<f32>,
    dx: Vec<f32>,
    dw: Vec<f32>,
    bias: Vec<f32>,
    sums: Vec<f64>,
}

fn epilogue<'a>(options: &Options, bias: &'a [f32], sums: &'a mut [f64]) -> Epilogue<'a> {
    let mut epilogue = Epilogue::default();
    match options.epilogue.as_str() {
        "none" => {}
        "relu" => {
            epilogue.bias = Some(bias);
            epilogue.negative_slope = Some(0.01);
        }
        "sums" => {
            epilogue.sums = Some(Sums {
                of: Summed::Squares,
                into: sums,
                accumulate: false,
            });
        }
        other => panic!("no epilogue {other}"),
    }
    epilogue
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5)
        .collect()
}

/// Best and median seconds of this many algorithms, in turns.
fn time(options: &Options, algorithms: usize, mut run: impl FnMut(usize)) -> Vec<(f64, f64)> {
    (0..algorithms).for_each(&mut run);
    let (mut seconds, begin) = (vec![Vec::new(); algorithms], Instant::now());
    let least = options.seconds * algorithms as f64;
    let mut repeats = 0;
    while begin.elapsed().as_secs_f64() < least || repeats < options.repeats {
        for (i, seconds) in seconds.iter_mut().enumerate() {
            let start = clock(options.cpu);
            run(i);
            seconds.push(clock(options.cpu) - start);
        }
        repeats += 1;
    }
    let best_and_median = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        (seconds[0], seconds[seconds.len() / 2])
    };
    seconds.into_iter().map(best_and_median).collect()
}

/// Seconds since some time; of the calling thread on a core if asked for.
fn clock(cpu: bool) -> f64 {
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    if !cpu {
        return BEGIN.get_or_init(Instant::now).elapsed().as_secs_f64();
    }
    // The system brings the time up to date when a thread yields.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")
        .unwrap_or_else(|e| panic!("no times of threads: {e}"));
    let first = text.split(' ').next().and_then(|t| t.parse::<f64>().ok());
    first.unwrap_or_else(|| panic!("times of threads: {text}")) * 1e-9
}

/// Multiply-adds in registers on all threads, in GFLOP/s.
fn peak(options: &Options) -> f64 {
    const ROUNDS: u64 = 500_000;
    let flops = multiply_adds(options.level, 1).flops * ROUNDS * options.threads as u64;
    let seconds = time(options, 1, |_| {
        std::thread::scope(|scope| {
            for _ in 1..options.threads {
                scope.spawn(|| multiply_adds(options.level, ROUNDS));
            }
            multiply_adds(options.level, ROUNDS);
        });
    });
    flops as f64 / seconds[0].0 * 1e-9
}

/// a = b + s * c beyond the caches on all threads, in GB/s of what is read and written.
fn triad(options: &Options) -> f64 {
    const N: usize = 16 << 20;
    let (mut a, b, c) = (vec![0.0f32; N], vec![1.0f32; N], vec![2.0f32; N]);
    let part = N.div_ceil(options.threads);
    let triad = |a: &mut [f32], b: &[f32], c: &[f32]| {
        for (a, (b, c)) in a.iter_mut().zip(b.iter().zip(c)) {
            *a = b + 3.0 * c;
        }
    };
    let seconds = time(options, 1, |_| {
        std::thread::scope(|scope| {
            let parts = a.chunks_mut(part).zip(b.chunks(part).zip(c.chunks(part)));
            let mut own = None;
            for (i, (a, (b, c))) in parts.enumerate() {
                match i {
                    0 => own = Some((a, b, c)),
                    1.. => {
                        scope.spawn(move || triad(a, b, c));
                    }
                }
            }
            if let Some((a, b, c)) = own {
                triad(a, b, c);
            }
        });
    });
    (12 * N) as f64 / seconds[0].0 * 1e-9
}
