//! Norm-wise comparison of outcomes.

use crate::{Case, Setup, reference_kernels, run};
use partita_graph::text;
use partita_program::Dtype;

/// Norm-wise relative distance `|a - b| / |b|` of two tensors; the denominator is at least `floor`.
pub fn distance(a: &[f64], b: &[f64], floor: f64) -> f64 {
    assert_eq!(a.len(), b.len(), "two tensors of one length");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    difference / norm(&mut b.iter().copied()).max(floor)
}

/// Asserts that a model of this text is trained like on one rank, two samples a step, in f64: on each mesh under each of these
/// settings of layers.
pub fn assert_like_one_rank(model: &str, seed: u64, (meshes, layers): (&[&str], &[&str])) {
    let graph = text::parse(model).expect("a valid model");
    let kernels = reference_kernels(Dtype::F64);
    let outcome = |strategy: &str| {
        let case = Case {
            graph: graph.clone(),
            strategy: strategy.parse().expect("a strategy"),
            batch: 2,
            seed,
        };
        run(&Setup::of_case(&case, &kernels)).expect("a run to its end")
    };
    let single = outcome("data=1");
    for (mesh, layers) in layers
        .iter()
        .flat_map(|one| meshes.iter().map(move |mesh| (mesh, one)))
    {
        let strategy = format!("{mesh}; {layers}");
        let found = mismatch(&outcome(&strategy), &single, 1e-10);
        assert_eq!(found, None, "{strategy}");
    }
}

/// The first difference of two outcomes by more than `tolerance`, as text.
///
/// Compares losses, and the change of each parameter in each step, so that a small error of a gradient
/// is not hidden behind a large weight.
pub fn mismatch(got: &crate::Outcome, expected: &crate::Outcome, tolerance: f64) -> Option<String> {
    for (step, (a, b)) in got.losses.iter().zip(&expected.losses).enumerate() {
        let far = (a - b).abs() > tolerance * b.abs().max(1e-3);
        if far || a.is_nan() || b.is_nan() {
            return Some(format!("loss of step {step}: {a} instead of {b}"));
        }
    }
    for step in 1..expected.parameters.len() {
        // The gradient of a bias before a batch norm is zero up to rounding, which is proportional to the
        // other gradients.
        let total: f64 = (0..expected.parameters[step].len())
            .flat_map(|index| {
                let after = &expected.parameters[step][index].1;
                after.iter().zip(&expected.parameters[step - 1][index].1)
            })
            .map(|(after, before)| (after - before) * (after - before))
            .sum();
        for (index, (name, after)) in expected.parameters[step].iter().enumerate() {
            let before = &expected.parameters[step - 1][index].1;
            let gain = |after: &[f64], before: &[f64]| -> Vec<f64> {
                after
                    .iter()
                    .zip(before)
                    .map(|(after, before)| after - before)
                    .collect()
            };
            let got_after = &got.parameters[step][index].1;
            let got_before = &got.parameters[step - 1][index].1;
            let floor = (1e-4 * (after.len() as f64).sqrt()).max(0.1 * total.sqrt());
            let far = distance(&gain(got_after, got_before), &gain(after, before), floor);
            if far > tolerance || far.is_nan() {
                return Some(format!(
                    "{name} gained differently by {far:.2e} in step {step}"
                ));
            }
        }
    }
    if got.evaluation.len() != expected.evaluation.len() {
        return Some("not the same evaluations".to_owned());
    }
    for (a, b) in got.evaluation.iter().zip(&expected.evaluation) {
        let far = (a - b).abs() > tolerance * b.abs().max(1e-3);
        if far || a.is_nan() || b.is_nan() {
            return Some(format!("evaluation: {a} instead of {b}"));
        }
    }
    None
}
