//! Optimizer and schedule in the words of a run file, as a resumed training compares and tells them.

use crate::train::section::short;
use partita_program::Optimizer;
use partita_session::{LearningRateSchedule, Milestones, WarmupLength};

/// Keys of a table with their values in TOML, in the order in which one writes them.
pub type Words = Vec<(String, String)>;

/// A table of these keys in one line.
pub fn inline(words: &[(String, String)]) -> String {
    let pairs: Vec<String> = words
        .iter()
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    format!("{{ {} }}", pairs.join(", "))
}

fn pair(key: &str, value: f64) -> (String, String) {
    (key.to_owned(), short(value))
}

fn kind(word: &str) -> (String, String) {
    ("kind".to_owned(), format!("\"{word}\""))
}

/// The table `[optimizer]`, its defaults included.
pub fn optimizer(rule: &Optimizer, decay_norms: bool, clip: Option<f64>) -> Words {
    let mut words = match *rule {
        Optimizer::Sgd {
            momentum,
            weight_decay,
        } => vec![
            kind("sgd"),
            pair("momentum", momentum),
            ("nesterov".to_owned(), "false".to_owned()),
            pair("weight_decay", weight_decay),
        ],
        Optimizer::Nesterov {
            momentum,
            weight_decay,
        } => vec![
            kind("sgd"),
            pair("momentum", momentum),
            ("nesterov".to_owned(), "true".to_owned()),
            pair("weight_decay", weight_decay),
        ],
        Optimizer::Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => moments("adam", [beta1, beta2, epsilon, weight_decay]),
        Optimizer::AdamW {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => moments("adamw", [beta1, beta2, epsilon, weight_decay]),
        Optimizer::Lamb {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => moments("lamb", [beta1, beta2, epsilon, weight_decay]),
        Optimizer::Lars {
            momentum,
            weight_decay,
            trust,
            epsilon,
        } => vec![
            kind("lars"),
            pair("momentum", momentum),
            pair("trust", trust),
            pair("epsilon", epsilon),
            pair("weight_decay", weight_decay),
        ],
    };
    words.push(("decay_norms".to_owned(), decay_norms.to_string()));
    words.extend(clip.map(|clip| pair("clip", clip)));
    words
}

fn moments(word: &str, [beta1, beta2, epsilon, weight_decay]: [f64; 4]) -> Words {
    vec![
        kind(word),
        pair("beta1", beta1),
        pair("beta2", beta2),
        pair("epsilon", epsilon),
        pair("weight_decay", weight_decay),
    ]
}

/// The table `[schedule]`, its defaults included. How long it is follows from `epochs`.
pub fn schedule(schedule: &LearningRateSchedule) -> Words {
    if let LearningRateSchedule::Warmup {
        length,
        factor,
        then,
    } = schedule
    {
        let length = match length {
            WarmupLength::Epochs(epochs) => pair("warmup_epochs", *epochs),
            WarmupLength::Steps(steps) => pair("warmup_steps", *steps as f64),
        };
        let mut words = self::schedule(then);
        words.extend([length, pair("warmup_factor", *factor)]);
        return words;
    }
    let (word, rate) = kind_and_rate(schedule);
    let mut words = vec![kind(word), pair("learning_rate", rate)];
    words.extend(constants(schedule));
    words
}

fn kind_and_rate(schedule: &LearningRateSchedule) -> (&'static str, f64) {
    match schedule {
        LearningRateSchedule::Constant { rate } => ("constant", *rate),
        LearningRateSchedule::Linear { rate, .. } => ("linear", *rate),
        LearningRateSchedule::Cosine { rate, .. } => ("cosine", *rate),
        LearningRateSchedule::Polynomial { rate, .. } => ("polynomial", *rate),
        LearningRateSchedule::Exponential { rate, .. } => ("exponential", *rate),
        LearningRateSchedule::Step { rate, .. } => ("step", *rate),
        LearningRateSchedule::CosineRestarts { rate, .. } => ("cosine_restarts", *rate),
        LearningRateSchedule::Plateau { rate, .. } => ("plateau", *rate),
        LearningRateSchedule::Warmup { then, .. } => kind_and_rate(then),
    }
}

/// What a schedule has besides its kind and its rate.
fn constants(schedule: &LearningRateSchedule) -> Words {
    let pairs =
        |pairs: &[(&str, f64)]| pairs.iter().map(|&(key, value)| pair(key, value)).collect();
    match schedule {
        LearningRateSchedule::Constant { .. } => Words::new(),
        LearningRateSchedule::Linear { final_factor, .. }
        | LearningRateSchedule::Cosine { final_factor, .. } => {
            pairs(&[("final_factor", *final_factor)])
        }
        LearningRateSchedule::Polynomial {
            final_factor,
            power,
            ..
        } => pairs(&[("final_factor", *final_factor), ("power", *power)]),
        LearningRateSchedule::Exponential { gamma, .. } => pairs(&[("gamma", *gamma)]),
        LearningRateSchedule::Step {
            gamma, milestones, ..
        } => vec![pair("gamma", *gamma), milestones_word(milestones)],
        LearningRateSchedule::CosineRestarts {
            final_factor,
            period,
            multiplier,
            ..
        } => pairs(&[
            ("final_factor", *final_factor),
            ("period", *period),
            ("multiplier", *multiplier),
        ]),
        LearningRateSchedule::Plateau {
            factor,
            patience,
            cooldown,
            final_factor,
            ..
        } => pairs(&[
            ("factor", *factor),
            ("patience", *patience as f64),
            ("cooldown", *cooldown as f64),
            ("final_factor", *final_factor),
        ]),
        LearningRateSchedule::Warmup { then, .. } => constants(then),
    }
}

fn milestones_word(milestones: &Milestones) -> (String, String) {
    match milestones {
        Milestones::At(epochs) => {
            let epochs: Vec<String> = epochs.iter().map(|&epoch| short(epoch)).collect();
            ("milestones".to_owned(), format!("[{}]", epochs.join(", ")))
        }
        Milestones::Every(epochs) => pair("every", *epochs),
    }
}
