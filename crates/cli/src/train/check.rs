//! What is checked before any rank starts. Each error says what was asked, what is possible, and the
//! nearest valid choice.

use super::run_file::RunFile;
use crate::error::CliError;
use crate::free_folder;
use partita_data::{Dataset, Split};
use partita_graph::{Graph, Loss, Op, Shape, zoo};
use partita_lower::Strategy;
use partita_run::Session;
use partita_space::{Bytes, Rank};
use std::fs;

/// Samples and targets of the dataset are those that the model reads and answers.
pub fn dataset_fits(run: &RunFile, graph: &Graph, dataset: &Dataset) -> Result<(), CliError> {
    let input = graph.nodes[0].shape;
    let [channels, d, h, w] = dataset.shape();
    if input.channels != channels || input.extent != [d, h, w] {
        let nearest = match model_for(dataset, &run.model) {
            Some(name) => format!("model = \"{name}\""),
            None => format!("a dataset of samples of {input}"),
        };
        return Err(CliError::User(format!(
            "model `{}` reads samples of {input}; {} holds samples of {d}x{h}x{w} with {channels} \
             channels; possible is a model or a dataset with the shape of the other, nearest is \
             {nearest}",
            graph.name,
            run.data.display()
        )));
    }
    targets_fit(run, graph, dataset)
}

/// A model of the zoo, of the same family if there is one, that reads the samples of a dataset.
fn model_for(dataset: &Dataset, asked: &str) -> Option<String> {
    let [channels, d, h, w] = dataset.shape();
    let reads = |name: &String| {
        zoo::build(name).is_ok_and(|graph| {
            let input = graph.nodes[0].shape;
            input.channels == channels && input.extent == [d, h, w]
        })
    };
    let suffix = asked.split_once('+').map(|(_, suffix)| suffix);
    let fitting: Vec<String> = zoo::names().into_iter().filter(reads).collect();
    let alike = |name: &&String| name.split_once('+').map(|(_, suffix)| suffix) == suffix;
    fitting.iter().find(alike).or(fitting.first()).cloned()
}

fn targets_fit(run: &RunFile, graph: &Graph, dataset: &Dataset) -> Result<(), CliError> {
    if let Some(extent) = dataset.labels() {
        return labels_fit(run, graph, dataset.targets(), extent);
    }
    let (answer, is_classifier) = answer(graph);
    let targets = dataset.targets().len();
    let expected = if is_classifier { 1 } else { answer.channels };
    if answer.extent != [1; 3] {
        return Err(CliError::User(format!(
            "model `{}` answers with {answer}, a value per position; {} holds vectors of {targets} \
             target(s); possible, and nearest, is a model that ends in a vector of {targets}",
            graph.name,
            run.data.display()
        )));
    }
    if expected != targets {
        return Err(CliError::User(format!(
            "the loss of model `{}` needs {expected} target(s) per sample; {} holds {targets} ({}); \
             possible, and nearest, is a model that ends in a vector of {targets}",
            graph.name,
            run.data.display(),
            dataset.targets().join(", ")
        )));
    }
    Ok(())
}

/// Shape of what the loss reads, and whether it takes that for scores of classes.
fn answer(graph: &Graph) -> (Shape, bool) {
    let last = &graph.nodes[graph.nodes.len() - 1];
    let is_classifier = matches!(last.op, Op::Loss(Loss::SoftmaxCrossEntropy { .. }));
    (graph.node(last.inputs[0]).shape, is_classifier)
}

/// For how many classes the model gives scores; none where its targets are numbers.
pub fn classes(graph: &Graph) -> Option<usize> {
    let (answer, is_classifier) = answer(graph);
    is_classifier.then_some(answer.channels)
}

/// The model tells classes apart, as many as there are or more, and where the dataset has them.
fn labels_fit(
    run: &RunFile,
    graph: &Graph,
    names: &[String],
    extent: [usize; 3],
) -> Result<(), CliError> {
    let labeled = |extent: [usize; 3]| {
        if extent == [1; 3] {
            "one class per sample".to_owned()
        } else {
            let [d, h, w] = extent;
            format!("a class at each of {d}x{h}x{w} positions")
        }
    };
    let (answer, is_classifier) = answer(graph);
    let (model, data) = (&graph.name, run.data.display());
    let (has, classes) = (labeled(extent), names.len());
    if !is_classifier {
        return Err(CliError::User(format!(
            "model `{model}` answers with numbers; {data} holds {has}; possible, and nearest, is a \
             model that ends in `softmax_cross_entropy`"
        )));
    }
    if answer.extent != extent {
        return Err(CliError::User(format!(
            "model `{model}` gives {}; {data} holds {has}; possible, and nearest, is a model that \
             gives {has}",
            labeled(answer.extent)
        )));
    }
    if classes > answer.channels {
        return Err(CliError::User(format!(
            "model `{model}` tells {} classes apart; {data} has {classes}; possible is a model that \
             ends in {classes} channels or more, nearest is {classes}",
            answer.channels
        )));
    }
    Ok(())
}

/// There are samples to train on, at least as many as a step takes.
pub fn batch_fits(run: &RunFile, dataset: &Dataset) -> Result<(), CliError> {
    let samples = dataset.samples(Split::Train);
    if samples == 0 {
        return Err(CliError::User(format!(
            "{} has no training samples; possible is a dataset with at least one",
            run.data.display()
        )));
    }
    if run.batch > samples {
        return Err(CliError::User(format!(
            "batch = {} is asked for, {} has {samples} training samples; possible is batch = 1 to \
             {samples}, nearest is batch = {samples}",
            run.batch,
            run.data.display()
        )));
    }
    Ok(())
}

/// The results have a folder of their own.
pub fn output_fits(run: &RunFile) -> Result<(), CliError> {
    let [output, data] = [&run.output, &run.data].map(|path| fs::canonicalize(path).ok());
    match output.is_some() && output == data {
        false => Ok(()),
        true => Err(CliError::User(format!(
            "output = \"{}\" is the dataset itself, and results would lie among its files; possible is \
             any other folder, nearest is output = \"{}\"",
            run.output.display(),
            free_folder::anywhere().display()
        ))),
    }
}

/// Batch norm sees a micro-batch at a time, on one rank as on many.
pub fn micro_warning(strategy: &Strategy, graph: &Graph) -> Option<String> {
    let mut ops = graph.nodes.iter().map(|node| &node.op);
    let has_norm = ops.any(|op| matches!(op, Op::BatchNorm { .. }));
    (strategy.micro > 1 && has_norm).then(|| {
        format!(
            "micro={}: batch norm takes the statistics of one micro-batch at a time, so this trains as one \
             rank does with the same micro-batches, not as one with whole mini-batches",
            strategy.micro
        )
    })
}

/// More threads than cores make nothing faster, but nothing wrong either.
pub fn core_warning(ranks: usize, threads: usize, cores: usize) -> Option<String> {
    let all = ranks * threads;
    (all > cores).then(|| {
        format!(
            "{ranks} rank(s) of {threads} thread(s) share {cores} core(s): they take turns, and \
             measured times say little about a machine with {all}"
        )
    })
}

/// All memory of every rank fits into `limit`; `origin` says where that comes from.
pub fn memory_fits(
    run: &RunFile,
    session: &Session<'_>,
    limit: Bytes,
    origin: &str,
) -> Result<(), CliError> {
    let ranks = session.main_program().mesh.ranks();
    let all = (0..ranks).map(|rank: Rank| (session.memory_bytes(rank), rank));
    let Some((bytes, rank)) = all.max_by_key(|&(bytes, rank)| (bytes, ranks - rank)) else {
        return Ok(());
    };
    if bytes <= limit {
        return Ok(());
    }
    let share = limit.0 as f64 / bytes.0 as f64;
    let batch = (run.batch as f64 * share) as usize;
    let smaller = if batch >= 1 && batch < run.batch {
        format!("lower the batch, nearest by proportion is batch = {batch}, or ")
    } else {
        String::new()
    };
    Err(CliError::User(format!(
        "rank {rank} needs {bytes} ({} B) of memory under `{}`, the limit is {limit} per rank \
         ({origin}); {smaller}split a sample over more ranks, like `depth={}`, or raise `memory`",
        bytes.0,
        session.main_program().title,
        2 * session
            .main_program()
            .mesh
            .extent(partita_space::Axis::Depth)
    )))
}
