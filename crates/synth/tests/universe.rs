//! Universes as their users see them: reproducible, conserving mass, following linear theory.

use partita_synth::growth::growth_factor;
use partita_synth::power::LinearPower;
use partita_synth::ridge::{self, error_ratio};
use partita_synth::spectrum::SpectrumSpec;
use partita_synth::{CHANNELS, CosmologySpec, SynthError, Universe, make_universe};

fn tiny() -> CosmologySpec {
    CosmologySpec {
        particles_per_dim: 32,
        ..CosmologySpec::small(16)
    }
}

fn channels(universe: &Universe, grid: usize) -> impl Iterator<Item = &[i16]> {
    universe.counts.chunks_exact(grid.pow(3))
}

fn variance(counts: &[i16]) -> f64 {
    let mean = counts.iter().map(|c| f64::from(*c)).sum::<f64>() / counts.len() as f64;
    let square = |c: &i16| (f64::from(*c) / mean - 1.0).powi(2);
    counts.iter().map(square).sum::<f64>() / counts.len() as f64
}

#[test]
fn no_particle_is_lost_at_any_time() {
    let spec = tiny();
    assert_eq!(spec.mean_count(), 8.0);
    for index in 0..5 {
        let universe = make_universe(&spec, index).unwrap();
        assert_eq!(universe.counts.len(), CHANNELS * 16 * 16 * 16);
        for counts in channels(&universe, 16) {
            assert!(counts.iter().all(|count| *count >= 0));
            assert_eq!(
                counts.iter().map(|c| i64::from(*c)).sum::<i64>(),
                32 * 32 * 32
            );
        }
    }
}

#[test]
fn structure_grows_with_time() {
    let spec = CosmologySpec::small(32);
    for index in 0..3 {
        let universe = make_universe(&spec, index).unwrap();
        // Channels run from today into the past.
        let variances: Vec<f64> = channels(&universe, 32).map(variance).collect();
        assert!(
            variances.windows(2).all(|pair| pair[0] > 1.2 * pair[1]),
            "{variances:?}"
        );
    }
}

#[test]
fn same_seed_and_index_give_the_same_bits_on_any_thread() {
    let spec = tiny();
    let alone: Vec<Universe> = (0..4)
        .map(|index| make_universe(&spec, index).unwrap())
        .collect();
    let together: Vec<Universe> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .rev()
            .map(|i| scope.spawn(move || make_universe(&spec, i).unwrap()))
            .collect();
        threads
            .into_iter()
            .rev()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn another_index_or_seed_gives_other_phases() {
    let spec = tiny();
    let contrast = |spec: &CosmologySpec, index| -> Vec<f64> {
        let universe = make_universe(spec, index).unwrap();
        channels(&universe, 16)
            .nth(1)
            .unwrap()
            .iter()
            .map(|c| f64::from(*c) / 8.0 - 1.0)
            .collect()
    };
    let norm = |a: &[f64]| a.iter().map(|x| x * x).sum::<f64>().sqrt();
    let base = contrast(&spec, 0);
    let others = [
        contrast(&spec, 1),
        contrast(&spec, 2),
        contrast(&CosmologySpec { seed: 7, ..spec }, 0),
    ];
    for other in others {
        let dot: f64 = base.iter().zip(&other).map(|(x, y)| x * y).sum();
        let correlation = dot / norm(&base) / norm(&other);
        // The contrast of neighbors is correlated, which leaves some 500 independent values.
        assert!(correlation.abs() < 0.2, "{correlation}");
    }
}

/// Long before shells cross, counts follow linear theory on scales well above a voxel.
#[test]
fn counts_follow_the_linear_power_spectrum() {
    let spec = CosmologySpec {
        box_mpc_h: 400.0,
        // A spacing of 3 Mpc/h: particles must move by about half of it before counts respond.
        particles_per_dim: 128,
        redshifts: [2.0, 3.0, 4.0, 5.0],
        ..CosmologySpec::small(16)
    };
    let spectrum = SpectrumSpec {
        grid: 16,
        box_mpc_h: spec.box_mpc_h,
        bins: 8,
    };
    let waves = spectrum.wave_numbers();
    let universes = 6;
    let mut ratios = vec![0.0; 4];
    for index in 0..universes {
        let universe = make_universe(&spec, index).unwrap();
        let cosmology = spec
            .ranges
            .cosmology(universe.unit_parameters.map(f64::from));
        let power = LinearPower::new(&cosmology);
        let growth = growth_factor(cosmology.omega_m, 2.0);
        let measured = spectrum.log_power(&universe.counts).unwrap();
        for (bin, ratio) in ratios.iter_mut().enumerate() {
            // Counting in cubes multiplies the power by sinc^2 along each dim: to second order,
            // averaged over directions, by 1 - (k voxel / 2)^2 / 3.
            let window = 1.0 - (waves[bin] * spec.box_mpc_h / 32.0).powi(2) / 3.0;
            let expected = power.at(waves[bin]) * growth * growth * window;
            *ratio += 10f64.powf(measured[bin]) / expected / universes as f64;
        }
    }
    // Pairs of modes in the bins of one universe: 9, 49, 105, ...
    for (bin, pairs) in [9.0, 49.0, 105.0, 200.0].into_iter().enumerate() {
        let tolerance = 4.0 / (pairs * universes as f64).sqrt() + 0.06;
        assert!(
            (ratios[bin] - 1.0).abs() < tolerance,
            "bin {bin}: {ratios:?}"
        );
    }
}

#[test]
fn unit_and_physical_parameters_agree() {
    let spec = tiny();
    for index in 0..20 {
        let universe = make_universe(&spec, index).unwrap();
        let [omega_m, sigma_8, n_s, h_0] = universe.physical_parameters.map(f64::from);
        let expected = [
            (omega_m / 0.3 - 1.0) / 0.1,
            (sigma_8 / 0.8 - 1.0) / 0.1,
            (n_s / 0.96 - 1.0) / 0.1,
            (h_0 / 70.0 - 1.0) / 0.1,
        ];
        for (unit, expected) in universe.unit_parameters.iter().zip(expected) {
            assert!((f64::from(*unit) - expected).abs() < 1e-5);
        }
    }
}

#[test]
fn impossible_specifications_are_refused() {
    let good = tiny();
    let bad = [
        CosmologySpec { grid: 24, ..good },
        CosmologySpec { grid: 8, ..good },
        CosmologySpec {
            particles_per_dim: 24,
            ..good
        },
        CosmologySpec {
            particles_per_dim: 0,
            ..good
        },
        CosmologySpec {
            particles_per_dim: 1024,
            ..good
        },
        CosmologySpec {
            box_mpc_h: 0.0,
            ..good
        },
        CosmologySpec {
            box_mpc_h: f64::NAN,
            ..good
        },
        CosmologySpec {
            redshifts: [0.0, 1.0, -0.5, 3.0],
            ..good
        },
    ];
    for spec in bad {
        let result = make_universe(&spec, 0);
        assert!(
            matches!(result, Err(SynthError::InvalidSpec { .. })),
            "{spec:?}"
        );
    }
    assert!(
        [16, 32, 64, 128, 256, 512]
            .into_iter()
            .all(|n| CosmologySpec::small(n).validate().is_ok())
    );
}

/// A dataset whose parameters cannot be recovered would be noise with labels.
#[test]
fn sigma_8_is_recoverable_from_few_universes() {
    let spec = tiny();
    let spectrum = SpectrumSpec {
        grid: 16,
        box_mpc_h: spec.box_mpc_h,
        bins: 4,
    };
    let (features, targets): (Vec<_>, Vec<_>) = (0..240)
        .map(|index| {
            let universe = make_universe(&spec, index).unwrap();
            let sigma_8 = f64::from(universe.unit_parameters[1]);
            (spectrum.log_power(&universe.counts).unwrap(), vec![sigma_8])
        })
        .unzip();
    let law = ridge::fit(&features[..180], &targets[..180]).unwrap();
    let truth: Vec<f64> = targets[180..].iter().map(|t| t[0]).collect();
    let predicted: Vec<f64> = features[180..]
        .iter()
        .map(|x| law.predict(x).unwrap()[0])
        .collect();
    let ratio = error_ratio(&truth, &predicted, 0.0).unwrap();
    assert!(ratio.root_mean_square < 0.6, "{ratio:?}");
}
