//! Speed of the convolutions of some networks, one JSON line for each layer and direction, after
//! one line on the machine. Times are in seconds, rates in GFLOP/s and GB/s.
//!
//! `cargo run --release -p partita-cpu --example convolutions -- [--threads N] [--level L]
//! [--networks A,B] [--layers A,B] [--directions forward,data,weight] [--seconds S] [--repeats N]
//! [--clock wall|cpu] [--epilogue none|relu|sums] [--table]`

mod layers;

use layers::{Layer, layers};
use partita_cpu::{
    Call, Convolution, Epilogue, Grid, Level, Summed, Sums, Team, View, ViewMut, Weights, Window,
    conv_backward_data, conv_backward_data_scratch, conv_backward_weight,
    conv_backward_weight_scratch, conv_forward, conv_forward_scratch, multiply_adds, sums_scratch,
};
use std::time::Instant;

const DIRECTIONS: [&str; 3] = ["forward", "data", "weight"];

struct Options {
    threads: usize,
    level: Level,
    networks: Option<String>,
    layers: Option<String>,
    directions: Option<String>,
    /// At least so long for each layer and direction, and at least so many repeats.
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
    // As ranks do; otherwise a short kernel ends before the system has given the threads two cores.
    let team = Team::on_first_cores(options.threads, options.level);
    let mut team = team.unwrap_or_else(|e| panic!("cannot start: {e}"));
    let peak = peak(&options);
    println!(
        "{{\"level\":\"{:?}\",\"threads\":{},\"peak_gflops\":{peak:.1},\"triad_gbs\":{:.1}}}",
        options.level,
        options.threads,
        triad(&options)
    );
    // Per network and direction: flops and seconds of all its layers.
    let mut totals: Vec<(&str, [(f64, f64); 3])> = Vec::new();
    for layer in layers() {
        if !chosen(&options.networks, layer.network) || !chosen(&options.layers, layer.name) {
            continue;
        }
        let results = Case::new(&layer).run(&mut team, &options);
        for (direction, seconds) in results.into_iter().enumerate() {
            let Some((best, median)) = seconds else {
                continue;
            };
            report(&layer, direction, (best, median), peak, options.table);
            if totals.last().is_none_or(|t| t.0 != layer.network) {
                totals.push((layer.network, [(0.0, 0.0); 3]));
            }
            if let Some((_, sums)) = totals.last_mut() {
                sums[direction].0 += layer.count as f64 * flops(&layer);
                sums[direction].1 += layer.count as f64 * best;
            }
        }
    }
    for (network, sums) in totals {
        for (direction, (flops, seconds)) in DIRECTIONS.iter().zip(sums) {
            if seconds > 0.0 {
                let rate = flops / seconds * 1e-9;
                println!(
                    "{{\"network\":\"{network}\",\"direction\":\"{direction}\",\"flops\":{flops},\
                     \"seconds_best\":{seconds:.6},\"gflops\":{rate:.1},\"of_peak\":{:.3}}}",
                    rate / peak
                );
            }
        }
    }
}

fn options() -> Options {
    let mut options = Options {
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

fn report(layer: &Layer, direction: usize, (best, median): (f64, f64), peak: f64, table: bool) {
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
            "{:12} {:12} {named:8} {:4}->{:4} @{:3} k{} s{} x{} {rate:6.1} GFLOP/s {:5.1} %",
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

    /// Best and median seconds of the directions.
    fn run(&self, team: &mut Team, options: &Options) -> [Option<(f64, f64)>; 3] {
        let (conv, xg, yg) = (&self.conv, &self.xg, &self.yg);
        let (c, f, kind) = (xg.channels, yg.channels, team.kind());
        let need = [
            conv_forward_scratch(kind, conv, c, f, yg.positions()),
            conv_backward_data_scratch(kind, conv, c, f, self.dxg.positions()),
            conv_backward_weight_scratch(kind, conv, xg, f),
        ];
        let need = need.map(|n| n + sums_scratch(kind, conv, c).max(sums_scratch(kind, conv, f)));
        let (bias, mut sums) = (ramp(c.max(f)), vec![0.0; 2 * c.max(f)]);
        let mut scratch = vec![0.0; need.into_iter().max().unwrap_or(0)];
        let x = ramp(xg.span());
        let w = ramp(conv.weight_elements(c, f));
        let mut y = ramp(self.dyg.span());
        let (mut dx, mut dw) = (vec![0.0; self.dxg.span()], w.clone());
        let w = Weights::Plain(&w);
        let mut progress = || true;
        let mut call = Call {
            team,
            scratch: &mut scratch,
            progress: &mut progress,
        };
        let x = View::new(&x, xg);
        std::array::from_fn(|direction| {
            if !chosen(&options.directions, DIRECTIONS[direction]) {
                return None;
            }
            Some(time(options, || {
                let channels = [f, c, 0][direction];
                let epilogue = epilogue(options, &bias, &mut sums[..2 * channels]);
                let work = match direction {
                    0 => {
                        let y = ViewMut::new(&mut y, yg);
                        conv_forward(&mut call, x, w, y, conv, false, epilogue)
                    }
                    1 => {
                        let (dy, dx) = (View::new(&y, &self.dyg), ViewMut::new(&mut dx, &self.dxg));
                        conv_backward_data(&mut call, dy, w, dx, conv, self.shift, false, epilogue)
                    }
                    _ => {
                        let dy = View::new(&y, yg);
                        conv_backward_weight(&mut call, x, dy, &mut dw, None, conv, false)
                    }
                };
                work.unwrap_or_else(|e| panic!("{e}"));
            }))
        })
    }
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

/// Best and median seconds.
fn time(options: &Options, mut run: impl FnMut()) -> (f64, f64) {
    run();
    let (mut seconds, begin) = (Vec::new(), Instant::now());
    while begin.elapsed().as_secs_f64() < options.seconds || seconds.len() < options.repeats {
        let start = clock(options.cpu);
        run();
        seconds.push(clock(options.cpu) - start);
    }
    seconds.sort_by(f64::total_cmp);
    (seconds[0], seconds[seconds.len() / 2])
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
    let (best, _) = time(options, || {
        std::thread::scope(|scope| {
            for _ in 1..options.threads {
                scope.spawn(|| multiply_adds(options.level, ROUNDS));
            }
            multiply_adds(options.level, ROUNDS);
        });
    });
    flops as f64 / best * 1e-9
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
    let (best, _) = time(options, || {
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
    (12 * N) as f64 / best * 1e-9
}
