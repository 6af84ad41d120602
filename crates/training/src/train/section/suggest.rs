//! What was probably meant: keys and words of other tools, and values in another form.

use super::{any_float, whole};
use partita_space::nearest;
use toml::de::DeValue;

/// Keys as other tools call them, and what they are here.
const KEYS: [(&str, &str); 52] = [
    ("arch", "model"),
    ("augment", "augmentation"),
    ("augmentations", "augmentation"),
    ("batch_size", "batch"),
    ("criterion", "loss"),
    ("dataset", "data"),
    ("decay", "weight_decay"),
    ("devices", "ranks"),
    ("early_stop", "early_stopping"),
    ("early_stopping_patience", "patience"),
    ("ema_decay", "ema"),
    ("end_factor", "final_factor"),
    ("eps", "epsilon"),
    ("eta_min", "final_factor"),
    ("frozen", "freeze"),
    ("global_batch_size", "batch"),
    ("gpus", "ranks"),
    ("grad_clip", "clip"),
    ("gradient_accumulation_steps", "accumulate"),
    ("grad_scaler", "loss_scale"),
    ("gradient_clip", "clip"),
    ("init_scale", "loss_scale"),
    ("l2", "weight_decay"),
    ("loss_scaling", "loss_scale"),
    ("lr", "learning_rate"),
    ("lr_scheduler", "schedule"),
    ("max_epochs", "epochs"),
    ("max_grad_norm", "clip"),
    ("max_norm", "clip"),
    ("min_lr", "final_factor"),
    ("model_ema", "ema"),
    ("model_ema_decay", "ema"),
    ("moving_average", "ema"),
    ("n_epochs", "epochs"),
    ("name", "kind"),
    ("nproc", "ranks"),
    ("num_epochs", "epochs"),
    ("num_workers", "loaders"),
    ("optim", "optimizer"),
    ("out", "output"),
    ("output_dir", "output"),
    ("pretrained", "weights"),
    ("random_seed", "seed"),
    ("scheduler", "schedule"),
    ("step_size", "every"),
    ("trust_coefficient", "trust"),
    ("type", "kind"),
    ("warmup", "warmup_epochs"),
    ("wd", "weight_decay"),
    ("workers", "loaders"),
    ("world_size", "ranks"),
    ("normalize", "transform"),
];

/// Keys of tables that are often written elsewhere.
const HOMES: [(&str, &[&str]); 7] = [
    (
        "",
        &[
            "model",
            "loss",
            "data",
            "output",
            "batch",
            "accumulate",
            "epochs",
            "ranks",
            "threads",
            "strategy",
            "micro_statistics",
            "precision",
            "loss_scale",
            "seed",
            "transform",
            "metrics",
            "memory",
            "watchdog",
            "weights",
            "freeze",
            "freeze_statistics",
            "schedule",
            "optimizer",
            "augmentation",
            "checkpoint",
            "offload",
            "drop_last",
            "early_stopping",
            "target",
            "ema",
            "allow_external",
        ],
    ),
    ("early_stopping.", &["min_delta", "metric"]),
    (
        "schedule.",
        &[
            "learning_rate",
            "final_factor",
            "warmup_epochs",
            "warmup_steps",
            "milestones",
            "gamma",
            "patience",
        ],
    ),
    (
        "optimizer.",
        &[
            "weight_decay",
            "momentum",
            "nesterov",
            "beta1",
            "beta2",
            "epsilon",
            "clip",
        ],
    ),
    (
        "augmentation.",
        &["flip", "rotate", "crop", "noise", "elastic"],
    ),
    (
        "data.",
        &["store", "preload", "spill", "store_memory", "decode_memory"],
    ),
    ("offload.", &["loaders", "validators", "cores"]),
];

/// Words as other tools call them, and what they are here.
const WORDS: [(&str, &str); 35] = [
    ("cosine_annealing", "cosine"),
    ("dice", "mean_dice"),
    ("double", "f64"),
    ("exp", "exponential"),
    ("false", "off"),
    ("fixed", "constant"),
    ("float", "f32"),
    ("float32", "f32"),
    ("float64", "f64"),
    ("fp32", "f32"),
    ("fp64", "f64"),
    ("full", "all"),
    ("iou", "mean_overlap"),
    ("json", "jsonl"),
    ("loss", "validation_loss"),
    ("mae", "mean_absolute_error"),
    ("momentum", "sgd"),
    ("multistep", "step"),
    ("no", "off"),
    ("normalise", "standardize"),
    ("normalize", "standardize"),
    ("off", "none"),
    ("on", "live"),
    ("poly", "polynomial"),
    ("ram", "memory"),
    ("reduce_on_plateau", "plateau"),
    ("train_loss", "training_loss"),
    ("true", "live"),
    ("val_loss", "validation_loss"),
    ("warm_restarts", "cosine_restarts"),
    ("x", "width"),
    ("y", "height"),
    ("z", "depth"),
    ("zscore", "standardize"),
    ("adam_w", "adamw"),
];

/// The key that was probably meant by one that a table does not have, with the table where it is another one.
///
/// `prefix` is the name of the table and a dot, or empty; `known` are its keys.
pub fn key(asked: &str, prefix: &str, known: &[&str]) -> String {
    let lower = asked.to_lowercase().replace('-', "_");
    let meant = KEYS.iter().find(|(other, _)| *other == lower);
    let meant = meant.map_or(lower.as_str(), |(_, meant)| meant);
    if known.contains(&meant) {
        return format!("{prefix}{meant}");
    }
    let elsewhere = HOMES
        .iter()
        .find(|(table, keys)| *table != prefix && keys.contains(&meant));
    match elsewhere {
        Some((table, _)) => format!("{table}{meant}"),
        None => {
            let close = nearest(asked, known.iter().copied()).unwrap_or("none");
            format!("{prefix}{close}")
        }
    }
}

/// Keys of other tools, and what they are here.
#[cfg(test)]
pub fn synonyms() -> impl Iterator<Item = (&'static str, &'static str)> {
    KEYS.into_iter()
}

/// Tables with keys that are often written elsewhere.
#[cfg(test)]
pub fn homes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = HOMES.into_iter();
    all.flat_map(|(table, keys)| keys.iter().map(move |key| (table, *key)))
}

/// The word of a list that was probably meant.
pub fn word<'w>(asked: &str, words: impl Iterator<Item = &'w str> + Clone) -> &'w str {
    let lower = asked.to_lowercase();
    let meant = WORDS.iter().find(|(other, _)| *other == lower);
    let meant = meant.and_then(|(_, meant)| words.clone().find(|word| word == meant));
    meant.or_else(|| nearest(asked, words)).unwrap_or("none")
}

/// A number, also one in quotes.
pub fn number(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::String(text) => text.trim().parse().ok(),
        value => any_float(value),
    };
    number.filter(|number: &f64| !number.is_nan())
}

/// The whole number between two bounds that is nearest to what is given.
pub fn whole_number(value: &DeValue<'_>, least: u64, most: u64) -> Option<u64> {
    number(value).map(|number| (number.round().max(0.0) as u64).clamp(least, most))
}

/// The truth value that was probably meant.
pub fn flag(value: &DeValue<'_>) -> Option<bool> {
    match value {
        DeValue::String(text) => match text.to_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" | "none" => Some(false),
            _ => None,
        },
        value => number(value).map(|number| number != 0.0),
    }
}

/// The time that was probably meant: seconds where no unit is given.
pub fn time(value: &DeValue<'_>) -> Option<String> {
    let text = match value {
        DeValue::String(text) => text.trim().to_lowercase(),
        value => number(value).map_or_else(String::new, |number| number.to_string()),
    };
    let split = text.find(|letter: char| letter.is_alphabetic());
    let (digits, unit) = text.split_at(split.unwrap_or(text.len()));
    let unit = match unit {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "min",
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        "ms" | "msec" | "millisecond" | "milliseconds" => "ms",
        _ => return None,
    };
    let number: f64 = digits.trim().parse().ok()?;
    (number > 0.0 && number.is_finite()).then(|| format!("\"{number} {unit}\""))
}

/// The list of one text that was probably meant by the text alone.
pub fn list(value: &DeValue<'_>) -> Option<String> {
    value.as_str().map(|text| format!("[\"{text}\"]"))
}

/// The text of a list of cores that was probably meant by a number or a list of numbers.
pub fn cores(value: &DeValue<'_>) -> Option<String> {
    let numbers: Option<Vec<i64>> = match value {
        DeValue::Array(list) => list.iter().map(|one| whole(one.get_ref())).collect(),
        value => whole(value).map(|number| vec![number]),
    };
    let numbers = numbers.filter(|all| !all.is_empty() && all.iter().all(|one| *one >= 0));
    numbers.map(|all| {
        let texts: Vec<String> = all.iter().map(i64::to_string).collect();
        format!("\"{}\"", texts.join(","))
    })
}
