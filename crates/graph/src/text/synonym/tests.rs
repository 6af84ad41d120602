//! Words of other frameworks.

use super::*;

fn words() -> Vec<&'static str> {
    Keyword::operations().map(Keyword::name).collect()
}

#[test]
fn the_tables_name_words_that_exist() {
    let words = words();
    for (asked, ours) in OPERATIONS {
        assert!(words.contains(&ours), "{ours}");
        assert!(!words.contains(&asked), "{asked} is ours");
        assert_eq!(bare(asked), asked);
    }
    let has = |key: &str| Keyword::operations().any(|keyword| keyword.keys().contains(&key));
    for (asked, ours) in KEYS {
        assert!(ours.iter().all(|key| has(key)), "{asked}");
    }
    for (asked, _) in LEFT_OUT {
        assert!(!has(asked), "{asked} is a key");
    }
}

#[test]
fn operations_of_other_frameworks_are_told_apart() {
    for (asked, ours) in [
        ("nn.Conv3d", "conv"),
        ("ConvTranspose2d", "conv_transpose"),
        ("avg_pool3d", "average_pool"),
        ("MaxPool2d", "max_pool"),
        ("AdaptiveAvgPool3d", "adaptive_average_pool"),
        ("BatchNorm3d", "batch_norm"),
        ("LeakyReLU", "leaky_relu"),
        ("F.interpolate", "upsample"),
        ("CrossEntropyLoss", "softmax_cross_entropy"),
        ("MSELoss", "mse"),
        ("SmoothL1Loss", "smooth_l1"),
        ("torch.cat", "concat"),
        ("fc", "linear"),
        ("covn", "conv"),
    ] {
        assert_eq!(operation(asked, &words()), ours, "{asked}");
    }
}
