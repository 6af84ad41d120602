//! Conversion of kernel keys of version 0 to version 1.
//!
//! Version 0 is what Rust's `Debug` gave of constants, and operands without names:
//! `copy false | F32 1x1x1x4x8 of 1x1x1x6x8 | F32 1x1x1x4x8 of 1x1x1x4x8` becomes
//! `k1 copy accumulate=false source=f32:1x1x1x4x8/1x1x1x6x8 target=f32:1x1x1x4x8/1x1x1x4x8`. Version 0 is
//! frozen, so new kernels need no entry here.

use partita_program::KernelShape;

// A new version must convert keys of version 1, too, and those of version 0 twice.
const _: () = assert!(KernelShape::KEY_VERSION == 1);

/// A constant of a kernel in a key.
enum Form {
    /// Kernel, stride and dilation.
    Taps,
    /// An integer.
    Number(&'static str),
    /// Three integers.
    Offsets(&'static str),
    /// `true` or `false`.
    Flag(&'static str),
    /// A flag that is absent if it is `false`.
    FlagIfTrue(&'static str),
    /// Three flags.
    Flags(&'static str),
    /// A flag for each of so many optional operands; version 1 has their names instead.
    Present(usize),
    /// A word, with the new one for each old one.
    Word(&'static str, &'static [[&'static str; 2]]),
    /// The transformation of samples.
    Transform,
    /// The optimizer.
    Rule,
}

use Form::{Flag, FlagIfTrue, Flags, Number, Offsets, Present, Rule, Taps, Transform, Word};

const ADDS: Form = Flag("accumulate");
const GROUPS: Form = Number("groups");
const SHIFT: Form = Offsets("shift");
const POOLS: Form = Word(
    "kind",
    &[
        ["Max", "max"],
        ["AverageAll", "average_all"],
        ["AverageInside", "average_inside"],
        ["L2", "l2"],
    ],
);
const DIRECTION: Form = Word(
    "direction",
    &[["Forward", "forward"], ["BackwardData", "backward_data"]],
);

/// Kinds of kernels with their constants and operands; `?` marks an optional one, `*` any number.
const KINDS: [(&str, &[Form], &str); 44] = [
    ("fill", &[], "target"),
    ("copy", &[ADDS], "source target"),
    ("import", &[Transform], "source target"),
    ("pack_weights", &[DIRECTION, Taps, GROUPS], "w packed"),
    (
        "convolution_forward",
        &[Taps, GROUPS, FlagIfTrue("accumulate")],
        "x w bias? y",
    ),
    (
        "convolution_backward_data",
        &[Taps, GROUPS, SHIFT, ADDS],
        "dy w bias? dx",
    ),
    ("convolution_backward_weight", &[Taps, GROUPS], "x dy dw"),
    ("bias_backward", &[ADDS], "dy db"),
    ("pool_forward", &[POOLS, Taps, SHIFT], "x y"),
    ("pool_backward", &[POOLS, Taps, SHIFT, ADDS], "x? dy dx"),
    ("batch_norm_statistics", &[ADDS], "x sums"),
    ("batch_norm_forward", &[], "x sums gamma beta y"),
    ("batch_norm_running", &[], "sums mean variance"),
    ("batch_norm_inference", &[], "x mean variance gamma beta y"),
    (
        "batch_norm_backward_statistics",
        &[ADDS],
        "x sums dy gradient_sums",
    ),
    (
        "batch_norm_backward_data",
        &[ADDS],
        "x sums gamma dy gradient_sums dx",
    ),
    (
        "batch_norm_backward_parameters",
        &[ADDS],
        "gradient_sums dgamma dbeta",
    ),
    ("layer_norm_statistics", &[], "x sums"),
    ("layer_norm_forward", &[], "x sums gamma beta y"),
    (
        "layer_norm_backward_statistics",
        &[],
        "x sums gamma dy gradient_sums",
    ),
    (
        "layer_norm_backward_data",
        &[ADDS],
        "x sums gamma dy gradient_sums dx",
    ),
    (
        "layer_norm_backward_parameters",
        &[ADDS],
        "x sums dy dgamma dbeta",
    ),
    ("gelu_forward", &[], "x y"),
    ("gelu_backward", &[ADDS], "x dy dx"),
    ("silu_forward", &[], "x y"),
    ("silu_backward", &[ADDS], "x dy dx"),
    ("leaky_relu_forward", &[], "x y"),
    ("leaky_relu_backward", &[ADDS], "y dy dx"),
    ("dropout", &[ADDS], "x y"),
    ("add", &[], "a b y"),
    ("linear_forward", &[], "x w bias? y"),
    ("linear_backward_data", &[ADDS], "dy w dx"),
    ("linear_backward_weight", &[ADDS], "x dy dw"),
    ("embedding_forward", &[], "x w y"),
    ("embedding_backward", &[ADDS], "x dy dw"),
    ("positions", &[], "x y"),
    (
        "attention_forward",
        &[Number("heads"), Flag("causal")],
        "q k v y",
    ),
    (
        "attention_backward",
        &[
            Number("heads"),
            Flag("causal"),
            Present(3),
            Flags("accumulate"),
        ],
        "q k v dy dq? dk? dv?",
    ),
    ("mean_squared_error", &[], "x target dx? loss"),
    ("softmax_cross_entropy", &[], "x target dx? loss"),
    ("output_errors", &[], "x target errors"),
    ("class_counts", &[], "x target counts"),
    ("sum_of_squares", &[], "source* total"),
    (
        "update",
        &[Rule, Present(1)],
        "gradient parameter moment* total?",
    ),
];

/// The key of version 1; none if the text is no key of version 0.
pub(crate) fn converted(key: &str) -> Option<String> {
    let parts: Option<Vec<String>> = key.split(" + ").map(part).collect();
    Some(format!("k1 {}", parts?.join(" + ")))
}

fn part(text: &str) -> Option<String> {
    let mut views = text.split(" | ");
    let (kind, constants) = views.next()?.split_once(' ')?;
    let (_, forms, names) = KINDS.iter().find(|of_kind| of_kind.0 == kind)?;
    let is_between = |c: char| " {}[],:".contains(c);
    let words: Vec<&str> = constants.split(is_between).collect();
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    let mut key = kind.to_owned();
    let mut present = Vec::new();
    for form in *forms {
        if let Present(count) = form {
            for _ in 0..*count {
                present.push(flag(words.next()?)? == "true");
            }
        } else {
            key.push(' ');
            key.push_str(&constant(form, &mut words)?);
        }
    }
    if words.next().is_some() {
        return None;
    }
    let views: Option<Vec<String>> = views.map(view).collect();
    let views = views?;
    let names = operands(names, &present, views.len())?;
    for (name, view) in names.iter().zip(views) {
        key.push_str(&format!(" {name}={view}"));
    }
    Some(key)
}

fn constant<'w>(form: &Form, words: &mut impl Iterator<Item = &'w str>) -> Option<String> {
    Some(match form {
        Form::Taps => {
            words.next().filter(|word| *word == "Taps")?;
            let mut dims = |name| {
                words.next().filter(|word| *word == name)?;
                Some(format!("{name}={}", three(words, "x", &whole)?))
            };
            let all = [dims("kernel")?, dims("stride")?, dims("dilation")?];
            all.join(" ")
        }
        Form::Number(name) => format!("{name}={}", whole(words.next()?)?),
        Form::Offsets(name) => format!("{name}={}", three(words, ",", &whole)?),
        Form::Flag(name) => format!("{name}={}", flag(words.next()?)?),
        Form::FlagIfTrue(name) => format!("{name}={}", flag(words.next().unwrap_or("false"))?),
        Form::Flags(name) => format!("{name}={}", three(words, ",", &flag)?),
        Form::Present(_) => panic!("flags of operands are no constants of version 1"),
        Form::Word(name, all) => {
            let old = words.next()?;
            let [_, new] = all.iter().find(|[known, _]| *known == old)?;
            format!("{name}={new}")
        }
        Form::Transform => match words.next()? {
            "Identity" => "transform=identity".to_owned(),
            "LogOnePlus" => "transform=log_one_plus".to_owned(),
            "Scale" => format!("transform=scale{}", floats(words, &["factor"])?),
            _ => return None,
        },
        Form::Rule => match words.next()? {
            "Sgd" => format!("rule=sgd{}", floats(words, &["momentum", "weight_decay"])?),
            "Adam" => {
                let names = ["beta1", "beta2", "epsilon", "weight_decay"];
                format!("rule=adam{}", floats(words, &names)?)
            }
            _ => return None,
        },
    })
}

/// Three checked words.
fn three<'w>(
    words: &mut impl Iterator<Item = &'w str>,
    between: &str,
    checked: &dyn Fn(&'w str) -> Option<&'w str>,
) -> Option<String> {
    let all: Option<Vec<&str>> = (0..3).map(|_| checked(words.next()?)).collect();
    Some(all?.join(between))
}

fn whole(word: &str) -> Option<&str> {
    word.parse::<i64>().is_ok().then_some(word)
}

fn flag(word: &str) -> Option<&str> {
    ["true", "false"].contains(&word).then_some(word)
}

/// Fields with these names.
fn floats<'w>(words: &mut impl Iterator<Item = &'w str>, names: &[&str]) -> Option<String> {
    let field = |name: &&str| {
        words.next().filter(|word| word == name)?;
        let number: f64 = words.next()?.parse().ok()?;
        Some(format!(" {name}={number:e}"))
    };
    names.iter().map(field).collect()
}

/// `F32 1x1x1x4x8 of 1x1x1x6x8`, after `packed ` for packed weights.
fn view(text: &str) -> Option<String> {
    let (form, text) = match text.strip_prefix("packed ") {
        Some(text) => ("packed:", text),
        None => ("", text),
    };
    let (dtype, extents) = text.split_once(' ')?;
    let dtype = match dtype {
        "F32" => "f32",
        "F64" => "f64",
        "I16" => "i16",
        _ => return None,
    };
    let (extent, dims) = extents.split_once(" of ")?;
    let is_sound = |extents: &str| {
        let mut numbers = extents.split('x');
        numbers.all(|number| number.parse::<usize>().is_ok()) && extents.split('x').count() == 5
    };
    let is_sound = is_sound(extent) && is_sound(dims);
    is_sound.then(|| format!("{form}{dtype}:{extent}/{dims}"))
}

/// The names of so many operands. A single optional operand has no flag: the count tells.
fn operands(names: &str, present: &[bool], count: usize) -> Option<Vec<String>> {
    let names: Vec<&str> = names.split(' ').filter(|name| !name.is_empty()).collect();
    let is_fixed = |name: &&&str| !name.ends_with(['?', '*']);
    let fixed = names.iter().filter(is_fixed).count();
    let (mut present, mut all) = (present.iter(), Vec::new());
    let given = present.as_slice().iter().filter(|given| **given).count();
    for name in &names {
        if let Some(name) = name.strip_suffix('?') {
            let is_present = present.next().copied().unwrap_or(count > fixed);
            all.extend(is_present.then(|| name.to_owned()));
        } else if let Some(name) = name.strip_suffix('*') {
            let more = count.checked_sub(fixed + given)?;
            all.extend((0..more).map(|_| name.to_owned()));
        } else {
            all.push((*name).to_owned());
        }
    }
    (all.len() == count).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Keys of the same kernels in both versions, of every kind and with every word.
    #[test]
    fn keys_of_version_0_become_those_of_version_1() {
        let list = include_str!("../tests/golden/keys-0-to-1.txt");
        let kinds: BTreeSet<&str> = list
            .split("\n\n")
            .map(|pair| {
                let (old, new) = pair.split_once('\n').unwrap();
                assert_eq!(converted(old).as_deref(), Some(new.trim_end()));
                old.split(' ').next().unwrap()
            })
            .collect();
        assert!(KINDS.iter().all(|(kind, ..)| kinds.contains(kind)));
    }

    #[test]
    fn other_texts_are_not_converted() {
        let view = "F32 1x1x1x4x8 of 1x1x1x6x8";
        let good = format!("copy false | {view} | {view}");
        let pool = |kind: &str, kernel: &str| {
            let steps = "stride: [1, 1, 1], dilation: [1, 1, 1]";
            let taps = format!("Taps {{ kernel: [{kernel}], {steps} }}");
            format!("pool_forward {kind} {taps} [0, 0, 0] | {view} | {view}")
        };
        for good in [&good, &pool("Max", "1, 1, 1")] {
            assert!(converted(good).is_some(), "{good}");
        }
        let wrong = [
            String::new(),
            "copy".to_owned(),
            format!("copy false | {view}"),
            format!("{good} | {view}"),
            format!("copy | {view} | {view}"),
            format!("copy false true | {view} | {view}"),
            format!("copy maybe | {view} | {view}"),
            format!("move false | {view} | {view}"),
            format!("{good} + "),
            good.replacen("F32", "F16", 1),
            good.replacen("1x1x1x4x8", "1x1x4x8", 1),
            good.replacen(" of ", " in ", 1),
            pool("Median", "1, 1, 1"),
            pool("Max", "1, 1"),
            pool("Max", "1, 1, 1, 1"),
            pool("Max", "1, 1, one"),
            format!("update Sgd {{ momentum: 0.9 }} false | {view} | {view}"),
            "sum_of_squares  ".to_owned(),
        ];
        for wrong in wrong {
            assert_eq!(converted(&wrong), None, "{wrong}");
        }
    }
}
