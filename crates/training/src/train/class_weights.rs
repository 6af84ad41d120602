//! Weights of classes that follow from the labels: those that a checkpoint or weights keep, or those of a training split.

use super::check;
use super::checkpoint::Resume;
use super::error::TrainError;
use super::run::Run;
use super::store::StoreKind;
use crate::weights::LoadedWeights;
use partita_data::{Dataset, Split};
use partita_formats::DataError;
use partita_graph::{ClassWeights, Graph, Loss, inverse_frequency};
use partita_input::class_counts;
use partita_site::launch::Launch;
use partita_site::{Event, Host};
use std::path::Path;

/// Most classes whose weights a line lists.
const LISTED_MAX: usize = 32;

/// The model of a training with its weights of classes: of the checkpoint, or else of the training split.
///
/// Errors: those of reading; no label counts.
pub fn of_training(
    launch: &Launch<'_>,
    run: &Run,
    (graph, dataset): (Graph, &Dataset),
    resume: Option<&Resume>,
) -> Result<Graph, TrainError> {
    if !graph.follows_labels() || run.store.kind == StoreKind::Synthetic {
        return Ok(graph);
    }
    if let Some(resume) = resume
        && let kept = &resume.state.data_record.class_weights
        && !kept.is_empty()
    {
        note(launch, &format!("{}, of the checkpoint", text(kept)));
        return with(graph, kept);
    }
    counted(launch, run, graph, || Ok(dataset.clone()))
}

/// The model of an evaluation with the weights of classes of its training; of the training split of `trained_on`, if the
/// weights keep none.
///
/// Errors: those of reading; no label counts; no training samples to count.
pub fn of_weights(
    launch: &Launch<'_>,
    run: &Run,
    graph: Graph,
    (weights, trained_on): (&LoadedWeights, &Path),
) -> Result<Graph, TrainError> {
    let kept = &weights.record().class_weights;
    if !graph.follows_labels() {
        Ok(graph)
    } else if check::classes(&graph) == Some(kept.len()) {
        with(graph, kept)
    } else {
        let ignored = check::ignored(&graph);
        counted(launch, run, graph, || {
            let dataset = Dataset::open_with(trained_on, &run.keys())?.ignoring(ignored);
            Ok(match &weights.record().targets {
                Some(record) => dataset.answering(record)?.0,
                None => dataset,
            })
        })
    }
}

/// The model with weights of the labels that rank 0 counts in a training split; says what they are.
fn counted(
    launch: &Launch<'_>,
    run: &Run,
    graph: Graph,
    dataset: impl FnOnce() -> Result<Dataset, DataError> + Send,
) -> Result<Graph, TrainError> {
    check_ignored(&graph)?;
    let (context, accepted) = (launch.context(), check::accepted(run, &graph));
    let threads = Host::local(context.level()).cores_usable;
    let status = |text: &str| {
        let is_last = text.is_empty();
        context.report(Event::Status { text, is_last });
    };
    let (counts, data) = launch.choose(|| {
        let dataset = dataset()?;
        let data = dataset.path().display().to_string();
        if dataset.samples(Split::Train) == 0 {
            return Err(TrainError::from(DataError::BadValue {
                what: "training split for the weights of classes",
                got: format!("none in {data}"),
                expected: "a dataset with training samples, weights of a training with `inverse_frequency`, or a list of \
                           numbers in place of this word"
                    .to_owned(),
            }));
        }
        status("labels of the training split");
        let counts = class_counts(&dataset, accepted, threads);
        status("");
        Ok((counts?, data))
    })?;
    let weights = inverse_frequency(&counts);
    let all: u64 = counts.iter().sum();
    let mut said = format!(
        "{}, by the {all} labels of the training split of {data}",
        text(&weights)
    );
    let absent: Vec<String> = (0..counts.len())
        .filter(|&class| counts[class] == 0)
        .map(|class| class.to_string())
        .collect();
    if !absent.is_empty() {
        let (shown, rest) = absent.split_at(absent.len().min(LISTED_MAX));
        let more = if rest.is_empty() { "" } else { ", ..." };
        said += &format!(
            "; classes without a label that counts have weight 0: {}{more}",
            shown.join(", ")
        );
    }
    note(launch, &said);
    with(graph, &weights)
}

/// Refuses losses that follow the labels and ignore different classes: labels are counted once for all of them.
fn check_ignored(graph: &Graph) -> Result<(), TrainError> {
    let losses = graph.nodes.iter().filter_map(|node| node.op.loss());
    let mut ignored: Vec<Option<i64>> = losses
        .filter_map(|loss| match loss {
            Loss::Classes(one) if one.inverse_frequency().is_some() => Some(one.ignore),
            Loss::Classes(_)
            | Loss::Elements(_)
            | Loss::MeanSquaredError
            | Loss::SoftmaxCrossEntropy { .. } => None,
        })
        .collect();
    ignored.dedup();
    if ignored.len() < 2 {
        return Ok(());
    }
    let shown = |one: &Option<i64>| one.map_or("none".to_owned(), |class| class.to_string());
    let all: Vec<String> = ignored.iter().map(shown).collect();
    Err(TrainError::from(DataError::BadValue {
        what: "`ignore` of losses with `inverse_frequency`",
        got: all.join(" and "),
        expected: "one `ignore` for all of these losses, or a list of numbers in place of the word"
            .to_owned(),
    }))
}

fn with(graph: Graph, weights: &[f64]) -> Result<Graph, TrainError> {
    let refused = |error| TrainError::Loss(Box::new(error));
    graph.with_inverse_frequency(weights).map_err(refused)
}

/// The weights as a line of a model has them; the least above 0 and the largest of many.
fn text(weights: &[f64]) -> String {
    let word = ClassWeights::INVERSE_FREQUENCY;
    if weights.len() <= LISTED_MAX {
        let weights: Vec<String> = weights.iter().map(f64::to_string).collect();
        return format!("{word}: weights of classes are {}", weights.join(","));
    }
    let above = weights.iter().copied().filter(|&weight| weight > 0.0);
    let least = above.fold(f64::INFINITY, f64::min);
    let most = weights.iter().copied().fold(0.0, f64::max);
    format!(
        "{word}: weights of {} classes are {least} to {most}",
        weights.len()
    )
}

fn note(launch: &Launch<'_>, text: &str) {
    if launch.is_first() {
        launch.context().report(Event::Note(text));
    }
}
