//! Words of other frameworks, of PyTorch above all, for what the text form has words of its own; errors suggest these.

use crate::infer::list;
use crate::keyword::Keyword;
use partita_space::nearest;

/// Operations: a word as [`bare`] gives it, and ours.
const OPERATIONS: [(&str, &str); 35] = [
    ("avgpool", "average_pool"),
    ("meanpool", "average_pool"),
    ("lppool", "l2_pool"),
    ("adaptiveavgpool", "adaptive_average_pool"),
    ("globalavgpool", "global_average_pool"),
    ("gap", "global_average_pool"),
    ("deconv", "conv_transpose"),
    ("upconv", "conv_transpose"),
    ("transposedconv", "conv_transpose"),
    ("bn", "batch_norm"),
    ("syncbatchnorm", "batch_norm"),
    ("interpolate", "upsample"),
    ("constantpad", "pad"),
    ("zeropad", "pad"),
    ("reflectionpad", "pad"),
    ("replicationpad", "pad"),
    ("fc", "linear"),
    ("dense", "linear"),
    ("view", "reshape"),
    ("unflatten", "reshape"),
    ("positionalembedding", "position_embedding"),
    ("posembed", "position_embedding"),
    ("cat", "concat"),
    ("concatenate", "concat"),
    ("mul", "multiply"),
    ("sum", "add"),
    ("swish", "silu"),
    ("lrelu", "leaky_relu"),
    ("multiheadattention", "attention"),
    ("scaleddotproductattention", "attention"),
    ("crossentropy", "softmax_cross_entropy"),
    ("nll", "softmax_cross_entropy"),
    ("bce", "bce_with_logits"),
    ("mae", "l1"),
    ("dicece", "dice_cross_entropy"),
];

/// Keys, and ours, of which the first counts that an operation has.
const KEYS: [(&str, &[&str]); 29] = [
    ("kernel_size", &["kernel"]),
    ("out_channels", &["filters", "channels"]),
    ("channels", &["filters"]),
    ("out_features", &["features"]),
    ("units", &["features"]),
    ("padding", &["pad"]),
    ("padding_mode", &["padding"]),
    ("mode", &["padding"]),
    ("strides", &["stride"]),
    ("eps", &["epsilon"]),
    ("elementwise_affine", &["affine"]),
    ("weight", &["gamma"]),
    ("bias", &["beta"]),
    ("p", &["rate"]),
    ("alpha", &["slope"]),
    ("negative_slope", &["slope"]),
    ("num_parameters", &["slopes"]),
    ("init", &["init_slope", "init_gamma"]),
    ("num_groups", &["groups"]),
    ("num_heads", &["heads"]),
    ("is_causal", &["causal"]),
    ("num_embeddings", &["rows"]),
    ("embedding_dim", &["channels"]),
    ("output_size", &["output"]),
    ("scale_factor", &["factor"]),
    ("count_include_pad", &["count_padding"]),
    ("label_smoothing", &["smoothing"]),
    ("ignore_index", &["ignore"]),
    ("pos_weight", &["weights"]),
];

/// Keys that the text form needs not, and why.
const LEFT_OUT: [(&str, &str); 11] = [
    ("in_channels", "it follows from the input"),
    ("in_features", "it follows from the input"),
    ("num_features", "it follows from the input"),
    ("num_channels", "it follows from the input"),
    ("normalized_shape", "it follows from the input"),
    ("embed_dim", "it follows from the input"),
    ("inplace", "it does not change the result"),
    ("track_running_stats", "running statistics are always kept"),
    ("reduction", "losses are means"),
    ("ceil_mode", "extents are always rounded down"),
    ("dim", "it is the channels"),
];

/// The word for the operation that is probably meant.
pub(super) fn operation(asked: &str, words: &[&'static str]) -> &'static str {
    let meant = bare(asked);
    let same = words.iter().find(|word| bare(word) == meant);
    let other = || OPERATIONS.iter().find(|(word, _)| *word == meant);
    let close = || nearest(asked, words.iter().copied());
    let found = same.copied().or_else(|| Some(other()?.1)).or_else(close);
    found.unwrap_or("conv")
}

/// What to write in place of a key that an operation does not have, with its quotes.
pub(super) fn key(keyword: Keyword, asked: &str) -> String {
    let keys = keyword.keys();
    let meant = asked.to_lowercase();
    let found = KEYS.iter().filter(|(word, _)| *word == meant);
    let mut ours = found.flat_map(|(_, ours)| *ours);
    if let Some(key) = ours.find(|key| keys.contains(key)) {
        return format!("`{key}`");
    }
    if let Some((_, why)) = LEFT_OUT.iter().find(|(word, _)| *word == meant) {
        return format!("to leave it out, as {why}");
    }
    match nearest(asked, keys.iter().copied()) {
        Some(key) => format!("`{key}`"),
        None => "no key".to_owned(),
    }
}

/// Keys of an operation, for errors.
pub(super) fn possible(keyword: Keyword) -> String {
    match keyword.keys() {
        [] => "none".to_owned(),
        keys => list(keys),
    }
}

/// The initialization that is probably meant.
pub(super) fn initialization(asked: &str) -> Option<&'static str> {
    let meant = asked.to_lowercase();
    let begins = |word: &str| meant.starts_with(word);
    if begins("kaiming") || begins("he") || begins("msra") {
        let fan_out = meant.contains("fan_out") || meant.contains("fanout");
        Some(if fan_out {
            "he_normal_fan_out"
        } else {
            "he_normal"
        })
    } else if begins("xavier") || begins("glorot") {
        Some("glorot_uniform")
    } else if begins("normal") || begins("trunc") || begins("gauss") {
        Some("normal:0.01")
    } else if begins("uniform") {
        Some("uniform:0.01")
    } else if begins("zero") {
        Some("constant:0")
    } else if begins("one") {
        Some("constant:1")
    } else {
        None
    }
}

/// The word for the padding that is probably meant.
pub(super) fn padding(asked: &str) -> Option<&'static str> {
    match asked.to_lowercase().as_str() {
        "circular" | "wrap" => Some("periodic"),
        "constant" => Some("zero"),
        "edge" | "border" | "symmetric" => Some("replicate"),
        "reflection" | "mirror" => Some("reflect"),
        _ => None,
    }
}

/// A number per dim as other frameworks write them, `(3,3,1)`, as we do, `3x3x1`; none if it is something else.
pub(super) fn dims(asked: &str) -> Option<String> {
    let is_separator = |letter: char| ",;*()[]X".contains(letter);
    let numbers: Vec<&str> = asked
        .split(is_separator)
        .filter(|word| !word.is_empty())
        .collect();
    let are_whole = numbers.iter().all(|word| word.parse::<u32>().is_ok());
    (are_whole && numbers.len() > 1).then(|| numbers.join("x"))
}

/// A word without what differs between spellings: `nn.MaxPool3d`, `max_pool3d` and `maxpool` are `maxpool`.
fn bare(word: &str) -> String {
    let word = word.rsplit('.').next().unwrap_or(word).to_lowercase();
    let word = word.replace(['_', '-'], "");
    let word = word.strip_suffix("loss").unwrap_or(&word);
    let dims = ["1d", "2d", "3d"]
        .iter()
        .find_map(|dims| word.strip_suffix(dims));
    dims.unwrap_or(word).to_owned()
}

#[cfg(test)]
mod tests;
