//! Targets that read models and strategies, and lower what they read.

use super::{put, text, verb};
use partita_graph::text::{parse, print};
use partita_lower::Strategy;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use zip::write::SimpleFileOptions;

/// Strategies under which models are lowered, with their ranks: one of each kind.
const STRATEGIES: [(&str, &str); 14] = [
    ("1", "data=1"),
    ("2", "data=2"),
    ("2", "depth=2"),
    ("2", "height=2"),
    ("4", "height=2,width=2"),
    ("3", "width=3"),
    ("2", "filter=2"),
    ("2", "channel=2"),
    ("4", "filter=2,channel=2"),
    ("2", "data=2,micro=2,shard=parameters"),
    ("2", "stages=2; micro=2"),
    ("2", "branch=2"),
    ("4", "data=2,width=2,overlap=off,fuse=off"),
    ("2", "stages=[1|1]; micro=2; schedule=gems"),
];

/// Most lines of a model that is also lowered, to limit the time.
const LINES_MAX: usize = 64;

/// Letters of a name of the zoo that is looked up.
const NAME_MAX: usize = 256;

/// Ranks for which mutated strategies are lowered.
const RANKS: [&str; 5] = ["1", "2", "4", "6", "8"];

/// Two models, whose layers the strategies of the corpus name.
const MODELS: [(&str, &str); 2] = [
    (
        "net.model",
        "model net
input x channels=4 extent=8x8x8
conv1 = conv x filters=8 kernel=3 pad=1 bias=true
bn1 = batch_norm conv1 epsilon=1e-5 momentum=0.1
relu1 = relu bn1
pool1 = max_pool relu1 kernel=2 stride=2
left = conv pool1 filters=4 kernel=3 pad=1 bias=false
right = conv pool1 filters=4 kernel=1 bias=false
join = concat left right
sum = add join pool1
conv2 = conv sum filters=8 kernel=3 pad=1 bias=true
relu2 = relu conv2
flat = flatten relu2
fc1 = linear flat features=8 bias=true
relu3 = relu fc1
fc2 = linear relu3 features=4 bias=true
loss = mse fc2
",
    ),
    (
        "sequence.model",
        "model sequence
input x channels=2 extent=8
first = slice x start=0 channels=1
embed = embedding first rows=16 channels=8 init=normal:1.0
place = positions embed
norm = layer_norm place epsilon=1e-6
q = conv norm filters=8 kernel=1 bias=true
k = conv norm filters=8 kernel=1 bias=true
v = conv norm filters=8 kernel=1 bias=true
heads = attention q k v heads=2 causal=true
out = conv heads filters=8 kernel=1 bias=true
sum = add place out
ff = gelu sum
scores = conv ff filters=16 kernel=1 bias=true
loss = softmax_cross_entropy scores smoothing=0.1
",
    ),
];

/// Writes the two models.
pub(super) fn write_models(folder: &Path) -> io::Result<()> {
    for (name, text) in MODELS {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// A model file: read, counted, printed and read again, and lowered under one of the strategies.
pub(super) fn model(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let path = put(&folder.join("input.model"), bytes);
    verb(&["inspect", &path, "--json"])?;
    verb(&["inspect", &path])?;
    let graph = parse(text(bytes)?).map_err(|error| error.to_string())?;
    let printed = print(&graph);
    let again = parse(&printed);
    assert_eq!(
        again.as_ref(),
        Ok(&graph),
        "what is printed reads as another model:\n{printed}"
    );
    if text(bytes)?.lines().count() > LINES_MAX {
        return Ok(());
    }
    let (ranks, strategy) =
        STRATEGIES[bytes.iter().map(|&byte| usize::from(byte)).sum::<usize>() % STRATEGIES.len()];
    let words = [
        "lower",
        &path,
        "--ranks",
        ranks,
        "--batch",
        "4",
        "--strategy",
        strategy,
    ];
    verb(&[&words[..], &["--json"]].concat())?;
    Ok(())
}

/// The program of an exported network, in an archive: imported, and printed.
pub(super) fn exported(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let path = folder.join("input.pt2");
    let file = fs::File::create(&path).map_err(|error| error.to_string())?;
    let mut archive = zip::ZipWriter::new(file);
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let started = archive.start_file("input/models/model.json", stored);
    started.map_err(|error| error.to_string())?;
    archive
        .write_all(bytes)
        .map_err(|error| error.to_string())?;
    archive.finish().map_err(|error| error.to_string())?;
    let path = path.display().to_string();
    verb(&["import", &path, "--json"])?;
    Ok(())
}

/// An ONNX model: imported, and printed.
pub(super) fn onnx(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let path = put(&folder.join("input.onnx"), bytes);
    verb(&["import", &path, "--json"])?;
    Ok(())
}

/// A name of the zoo.
pub(super) fn zoo(bytes: &[u8], _: &Path) -> Result<(), String> {
    let name = text(bytes)?.trim();
    // The nearest of all names is looked for letter by letter.
    if name.len() > NAME_MAX {
        return Err("a long name".to_owned());
    }
    // Names with separators are paths, and those with dashes in front options.
    if name.contains(std::path::is_separator) || name.starts_with('-') || name.contains('\0') {
        return Err("no name".to_owned());
    }
    verb(&["inspect", name, "--json"])?;
    Ok(())
}

/// A strategy and, in a second line, which of the two models it is for: read, printed and read again,
/// checked against numbers of ranks, and lowered.
pub(super) fn strategy(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let text = text(bytes)?;
    let (strategy, model) = text.split_once('\n').unwrap_or((text, ""));
    let model = usize::from(model.trim() == "sequence");
    let read: Strategy = strategy
        .parse()
        .map_err(|error: partita_lower::StrategyError| error.to_string())?;
    let printed = read.to_string();
    assert_eq!(
        printed.parse().as_ref(),
        Ok(&read),
        "what is printed reads as another strategy: {printed}"
    );
    if strategy.starts_with('-') {
        return Err("an option".to_owned());
    }
    let path = folder.join(MODELS[model].0).display().to_string();
    let mut last = Ok(());
    for ranks in RANKS {
        let words = [
            "lower",
            &path,
            "--ranks",
            ranks,
            "--batch",
            "8",
            "--strategy",
            strategy,
        ];
        last = verb(&[&words[..], &["--json"]].concat()).map(drop);
        if last.is_ok() {
            return Ok(());
        }
    }
    last
}
