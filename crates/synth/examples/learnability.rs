//! How well a linear law recovers the parameters of the recommended universes, and how fast
//! universes are made. Prints one line per parameter: errors relative to predicting the mean.

use std::time::Instant;

use partita_synth::ridge::{self, error_ratio};
use partita_synth::spectrum::SpectrumSpec;
use partita_synth::{CosmologySpec, SynthError, make_universe};

const TRAINING: usize = 512;
const TEST: usize = 256;

fn main() -> Result<(), SynthError> {
    let spec = CosmologySpec::small(32);
    let spectrum = SpectrumSpec {
        grid: spec.grid,
        box_mpc_h: spec.box_mpc_h,
        bins: 16,
    };
    let mut features = Vec::new();
    let mut targets = Vec::new();
    let start = Instant::now();
    for index in 0..(TRAINING + TEST) as u64 {
        let universe = make_universe(&spec, index)?;
        features.push(spectrum.log_power(&universe.counts)?);
        targets.push(universe.unit_parameters.map(f64::from).to_vec());
    }
    let seconds = start.elapsed().as_secs_f64() / (TRAINING + TEST) as f64;
    println!("{spec:?}");
    println!("{seconds:.4} s for one universe and its spectrum on one core");
    let law = ridge::fit(&features[..TRAINING], &targets[..TRAINING])?;
    println!("ridge on {TRAINING} universes, tested on {TEST}:");
    for (parameter, name) in ["Omega_m", "sigma_8", "n_s", "H_0"].into_iter().enumerate() {
        let truth: Vec<f64> = targets[TRAINING..].iter().map(|t| t[parameter]).collect();
        let mean = targets[..TRAINING]
            .iter()
            .map(|t| t[parameter])
            .sum::<f64>()
            / TRAINING as f64;
        let predicted = features[TRAINING..]
            .iter()
            .map(|x| law.predict(x).map(|all| all[parameter]))
            .collect::<Result<Vec<f64>, _>>()?;
        let ratio = error_ratio(&truth, &predicted, mean)?;
        let (absolute, square) = (ratio.mean_absolute, ratio.root_mean_square);
        println!("{name:8} mean absolute {absolute:.3}  root mean square {square:.3}");
    }
    Ok(())
}
