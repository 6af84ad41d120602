//! Upsampling, padding and adaptive means under all meshes.

use crate::ledger::{Ledger, Refusal};
use crate::named::{all_meshes, check_all, check_share};
use partita_graph::text::parse;

/// A resampling between two convolutions.
fn check(ledger: &mut Ledger, extent: &str, line: &str, ranks: &[usize]) {
    let text = format!(
        "model resampled\ninput x channels=2 extent={extent}\n\
         c1 = conv x filters=3 kernel=3 pad=1 bias=true\n\
         r = {line}\n\
         c2 = conv r filters=2 kernel=3 pad=1 bias=true\nloss = mse c2\n"
    );
    let graph = parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let strategies = all_meshes(extent.split('x').count(), ranks);
    check_share(ledger, line, &graph, 2, &strategies);
}

#[test]
fn resamplings_of_shards_of_any_extent() {
    let mut ledger = Ledger::default();
    for (extent, ranks) in [
        ("9", &[2, 3, 5][..]),
        ("7x5", &[2, 4, 6]),
        ("3x4x5", &[4, 8]),
    ] {
        for line in [
            "upsample c1 factor=2",
            "upsample c1 factor=3 mode=linear",
            "upsample c1 factor=2 mode=linear",
            "upsample c1 factor=2 mode=linear align_corners=true",
            "pad c1 pad=2 padding=reflect",
            "pad c1 pad=1:2 padding=reflect",
            "pad c1 pad=3:0 padding=replicate",
            "pad c1 pad=4 padding=replicate",
            "pad c1 pad=1:3",
            "adaptive_average_pool c1 output=2",
            "adaptive_average_pool c1 output=4",
            "adaptive_average_pool c1 output=7",
        ] {
            check(&mut ledger, extent, line, ranks);
        }
    }
    for line in [
        "upsample c1 factor=1x2 mode=linear",
        "pad c1 pad=6:1x0 padding=reflect",
        "adaptive_average_pool c1 output=7x2",
        "conv c1 filters=3 kernel=5 stride=2 pad=2 padding=reflect bias=true",
        "conv c1 filters=3 kernel=3 dilation=2 pad=2 padding=replicate bias=false",
    ] {
        check(&mut ledger, "7x5", line, &[2, 3, 4, 6]);
    }
    ledger.close_share("resamplings", 300, &[Refusal::TooFine]);
}

/// Other readers of the same tensor have other halos, some of them periodic.
#[test]
fn resamplings_beside_other_readers() {
    let mut ledger = Ledger::default();
    for other in [
        "conv both filters=3 kernel=3 pad=1 bias=true",
        "conv both filters=3 kernel=3 pad=1 padding=periodic bias=true",
        "max_pool both kernel=3 stride=1 pad=1",
        "conv both filters=3 kernel=3 pad=1 padding=reflect bias=true",
    ] {
        let text = format!(
            "model readers\ninput x channels=2 extent=7x5\n\
             both = conv x filters=3 kernel=1 bias=true\n\
             up = upsample both factor=2 mode=linear\n\
             left = average_pool up kernel=2 stride=2 count_padding=false\n\
             right = {other}\nsum = add left right\nloss = mse sum\n"
        );
        let graph = parse(&text).unwrap();
        check_all(&mut ledger, other, &graph, 2, &all_meshes(2, &[2, 4, 6]));
    }
    ledger.close("resamplings beside other readers", 30, &[Refusal::TooFine]);
}
