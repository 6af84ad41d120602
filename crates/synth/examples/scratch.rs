use partita_synth::*;
use partita_synth::spectrum::SpectrumSpec;
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let grid: usize = a[1].parse().unwrap();
    let side: f64 = a[2].parse().unwrap();
    let per: usize = a[3].parse().unwrap();
    let width: f64 = a[4].parse().unwrap();
    let train: usize = a[5].parse().unwrap();
    let r = ParameterRanges::cosmoflow_2019();
    let w = |p: ParameterRange| ParameterRange { half_width: p.half_width * width, ..p };
    let spec = CosmologySpec { grid, box_mpc_h: side, particles_per_dim: per * grid, redshifts: PUBLISHED_REDSHIFTS,
        ranges: ParameterRanges { omega_m: w(r.omega_m), sigma_8: w(r.sigma_8), n_s: w(r.n_s), h_0: w(r.h_0) }, seed: 2019 };
    let sp = SpectrumSpec { grid, box_mpc_h: side, bins: grid / 2 };
    let total = train + 256;
    let start = Instant::now();
    let work = |range: std::ops::Range<usize>| -> Vec<(Vec<f64>, Vec<f64>, Vec<f64>)> {
        range.map(|i| { let u = make_universe(&spec, i as u64).unwrap();
            let mut local = Vec::new();
            // local statistics per channel: moments of count contrast & of log1p, neighbor products
            let n = grid; let v = n*n*n;
            for c in 0..4 { let ch = &u.counts[c*v..(c+1)*v]; let m = (per*per*per) as f64;
                let f: Vec<f64> = ch.iter().map(|x| (*x as f64 / m + 1.0).ln()).collect();
                let e: Vec<f64> = ch.iter().map(|x| *x as f64 / m ).collect();
                for g in [&f, &e] {
                let mean = g.iter().sum::<f64>() / v as f64;
                let var = g.iter().map(|x| (x-mean).powi(2)).sum::<f64>() / v as f64;
                let sk = g.iter().map(|x| (x-mean).powi(3)).sum::<f64>() / v as f64;
                local.extend([mean, var.ln(), sk/var.powf(1.5)]);
                let nb = |s: usize| (0..v).map(|i| (g[i]-mean)*(g[(i+s)%v]-mean)).sum::<f64>() / v as f64;
                local.extend([nb(1)/var, (nb(2)/var), nb(n+1)/var]);
                }
                for t in [0.25, 0.5, 1.0, 1.5, 2.0, 3.0] { local.push(e.iter().filter(|x| **x < t).count() as f64 / v as f64); }
            }
            (sp.log_power(&u.counts).unwrap(), local, u.unit_parameters.iter().map(|x| *x as f64).collect()) }).collect()
    };
    let (x, y) = std::thread::scope(|s| { let h = s.spawn(|| work(total/2..total)); let mut a = work(0..total/2); a.extend(h.join().unwrap()); (a, ()) });
    let _ = y;
    let secs = start.elapsed().as_secs_f64() * 2.0 / total as f64;
    let u = make_universe(&spec, 0).unwrap();
    let v = grid.pow(3);
    let stat: Vec<String> = (0..4).map(|c| { let ch=&u.counts[c*v..(c+1)*v]; let m=(per*per*per) as f64; let var = ch.iter().map(|x| (*x as f64/m-1.0).powi(2)).sum::<f64>()/v as f64; format!("{:.3}(max {})", var.sqrt(), ch.iter().max().unwrap()) }).collect();
    print!("grid {grid} box {side} per {per} width {width} train {train} {secs:.4}s/core sd {stat:?}\n");
    let ys: Vec<Vec<f64>> = x.iter().map(|t| t.2.clone()).collect();
    for which in 0..3 {
        let f: Vec<Vec<f64>> = x.iter().map(|t| match which { 0 => t.0.clone(), 1 => t.1.clone(), _ => [t.0.clone(), t.1.clone()].concat() }).collect();
        let r = ridge::fit(&f[..train], &ys[..train]).unwrap();
        print!("  {}", ["spectrum","local   ","both    "][which]);
        for p in 0..4 {
            let truth: Vec<f64> = ys[train..].iter().map(|y| y[p]).collect();
            let pred: Vec<f64> = f[train..].iter().map(|x| r.predict(x).unwrap()[p]).collect();
            let mean = ys[..train].iter().map(|y| y[p]).sum::<f64>() / train as f64;
            let e = ridge::error_ratio(&truth, &pred, mean).unwrap();
            print!(" {}: mae {:.3} rms {:.3}", ["Om","s8","ns","H0"][p], e.mean_absolute, e.root_mean_square);
        }
        println!(" lambda {:?}", r.lambdas());
    }
}
