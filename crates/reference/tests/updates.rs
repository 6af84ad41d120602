//! Updates from given gradients against PyTorch and the papers: `fixtures/updates.txt`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::hand;

use hand::{Bench, close};
use partita_program::{Dtype, Kernel, Optimizer, View};

const TABLE: &str = include_str!("../../../fixtures/updates.txt");
const MOMENTUM: f64 = 0.9;
const DECAY: f64 = 0.1;
const BETAS: [f64; 2] = [0.8, 0.95];
const EPSILON: f64 = 1e-3;

/// The rows of a name, one for each update.
fn rows(name: &str) -> Vec<Vec<f64>> {
    let rows = TABLE.lines().filter_map(|line| {
        let (of, values) = line.split_once(' ')?;
        let numbers = values.split(' ').map(|word| word.parse().unwrap());
        (of == name).then(|| numbers.collect())
    });
    rows.collect()
}

fn rules() -> [(&'static str, Optimizer); 6] {
    let (momentum, weight_decay) = (MOMENTUM, DECAY);
    let ([beta1, beta2], epsilon) = (BETAS, EPSILON);
    [
        (
            "sgd",
            Optimizer::Sgd {
                momentum,
                weight_decay,
            },
        ),
        (
            "nesterov",
            Optimizer::Nesterov {
                momentum,
                weight_decay,
            },
        ),
        (
            "adam",
            Optimizer::Adam {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            },
        ),
        (
            "adamw",
            Optimizer::AdamW {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            },
        ),
        (
            "lars",
            Optimizer::Lars {
                momentum,
                weight_decay,
                trust: 0.02,
                epsilon,
            },
        ),
        (
            "lamb",
            Optimizer::Lamb {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            },
        ),
    ]
}

/// A parameter on a bench, with its gradient, moments and norms.
struct Trained {
    bench: Bench,
    parameter: View,
    gradient: View,
    moments: Vec<View>,
    norms: View,
}

impl Trained {
    fn new(rule: &Optimizer, start: &[f64]) -> Self {
        let mut bench = Bench::new();
        let extent = [1, 1, 1, 1, start.len()];
        let zeros = vec![0.0; start.len()];
        Self {
            parameter: bench.put(Dtype::F64, extent, start),
            gradient: bench.put(Dtype::F64, extent, &zeros),
            moments: rule
                .moments()
                .iter()
                .map(|_| bench.put(Dtype::F64, extent, &zeros))
                .collect(),
            norms: bench.put(Dtype::F64, [1, 1, 1, 1, 2], &[0.0; 2]),
            bench,
        }
    }

    /// One update, with norms first where the rule has a trust ratio.
    fn update(&mut self, rule: Optimizer, gradient: &[f64], is_measured: bool) {
        self.bench.set(&self.gradient, gradient);
        let is_lamb = matches!(rule, Optimizer::Lamb { .. });
        let [first, last] = if is_lamb {
            [self.moments.clone(), vec![]]
        } else {
            [vec![], self.moments.clone()]
        };
        if is_measured {
            self.bench.run(&Kernel::UpdateNorms {
                rule,
                parameter: self.parameter,
                gradient: self.gradient,
                moments: first,
                clip: None,
                norms: self.norms,
            });
        }
        self.bench.run(&Kernel::Update {
            rule,
            parameter: self.parameter,
            gradient: self.gradient,
            moments: last,
            norms: is_measured.then_some(self.norms),
            clip: None,
        });
    }
}

#[test]
fn updates_equal_pytorch_and_the_papers() {
    let (rates, start, gradients) = (rows("rates"), rows("start"), rows("gradient"));
    for (name, rule) in rules() {
        let expected = rows(name);
        assert_eq!(expected.len(), 4, "{name}");
        let mut trained = Trained::new(&rule, &start[0]);
        for (step, (gradient, expected)) in gradients.iter().zip(&expected).enumerate() {
            trained.bench.inputs.step = step as u64 + 1;
            trained.bench.inputs.learning_rate = rates[0][step];
            trained.update(rule, gradient, rule.has_trust_ratio());
            close(&trained.bench.get(&trained.parameter), expected, 1e-13);
        }
    }
}

/// A bias whose gradient is zero, or that is zero itself, has a trust ratio of 1.
#[test]
fn a_norm_of_zero_leaves_the_update_unscaled() {
    let lars = Optimizer::Lars {
        momentum: 0.0,
        weight_decay: 0.0,
        trust: 0.02,
        epsilon: 0.0,
    };
    let mut trained = Trained::new(&lars, &[0.0, 0.0]);
    trained.bench.inputs.learning_rate = 0.5;
    trained.update(lars, &[1.0, -2.0], true);
    close(&trained.bench.get(&trained.parameter), &[-0.5, 1.0], 1e-15);
    trained.update(lars, &[0.0, 0.0], true);
    close(&trained.bench.get(&trained.parameter), &[-0.5, 1.0], 1e-15);
}

/// What is exempt from decay has no norms: plain momentum with the rate in the velocity, and plain Adam.
#[test]
fn what_is_exempt_from_decay_is_updated_without_norms() {
    let (start, gradients) = (&rows("start")[0], rows("gradient"));
    for (_, rule) in rules() {
        let plain = rule.without_decay();
        let mut trained = Trained::new(&plain, start);
        trained.bench.inputs.learning_rate = 0.1;
        for (step, gradient) in gradients[..2].iter().enumerate() {
            trained.bench.inputs.step = step as u64 + 1;
            trained.update(plain, gradient, false);
        }
        let is_adaptive = plain.moments().len() == 2;
        for (at, found) in trained.bench.get(&trained.parameter).iter().enumerate() {
            let [a, b] = [gradients[0][at], gradients[1][at]];
            let expected = if is_adaptive {
                start[at] - adam_steps([a, b])
            } else {
                let velocities = [a, MOMENTUM * a + b];
                let steps = if let Optimizer::Nesterov { .. } = plain {
                    [a + MOMENTUM * velocities[0], b + MOMENTUM * velocities[1]]
                } else {
                    velocities
                };
                start[at] - 0.1 * (steps[0] + steps[1])
            };
            close(&[*found], &[expected], 1e-13);
        }
    }
}

/// Two steps of Adam at rate 0.1.
fn adam_steps(gradients: [f64; 2]) -> f64 {
    let [mut m, mut v, mut moved] = [0.0; 3];
    for (step, g) in (1..).zip(gradients) {
        m = BETAS[0] * m + (1.0 - BETAS[0]) * g;
        v = BETAS[1] * v + (1.0 - BETAS[1]) * g * g;
        let [first, second] = BETAS.map(|beta: f64| 1.0 - beta.powi(step));
        moved += 0.1 * (m / first) / ((v / second).sqrt() + EPSILON);
    }
    moved
}
