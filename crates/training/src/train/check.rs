//! Checks before any rank starts. Each error names what was requested, what is possible, and the nearest valid
//! choice.

use super::checkpoint::BestMetric;
use super::error::{Mismatch, OutputError, TrainError};
use super::run::Run;
use partita_data::{Dataset, Split};
use partita_formats::DataError;
use partita_graph::{Graph, Loss, Node, Op, Parameter, Shape, TargetKind, zoo};
use partita_input::{Accepted, CheckScope, DataCheck, Preprocessing, Sampling};
use partita_site::launch::Launch;
use partita_site::{Environment, Event, Host, free_folder};
use std::fs;

/// Checks that samples and targets of the dataset match the model.
pub fn dataset_fits(
    run: &Run,
    graph: &Graph,
    dataset: &Dataset,
    sampling: &Sampling,
) -> Result<(), TrainError> {
    samples_fit(run, graph, (dataset, sampling))?;
    targets_fit(run, graph, (dataset, sampling))?;
    Ok(ignored_fits(graph, dataset)?)
}

/// Checks that samples of the dataset match the model.
pub fn samples_fit(
    run: &Run,
    graph: &Graph,
    (dataset, sampling): (&Dataset, &Sampling),
) -> Result<(), Mismatch> {
    let (expected, found) = (features(graph), dataset.features());
    if expected != 0 && expected != found.len() {
        return Err(Mismatch::Features {
            model: graph.name.clone(),
            expected,
            data: run.data.clone(),
            features: found.to_vec(),
        });
    }
    let input = graph.nodes[0].shape;
    let [channels, d, h, w] = sampling.shape();
    if input.channels != channels || input.extent != [d, h, w] {
        let [_, volume @ ..] = dataset.shape();
        let may_crop = input.channels == channels
            && input
                .extent
                .into_iter()
                .zip(volume)
                .all(|(crop, extent)| crop == 1 || extent > 1);
        let nearest = match model_for(sampling, run.model.name()) {
            Some(_) | None if may_crop && sampling.crops().is_some() => {
                format!("augmentation.crop = {:?}", input.extent)
            }
            Some(name) => format!("model = \"{name}\""),
            None => format!("a dataset of samples of {input}"),
        };
        let one_hot = run
            .samples
            .one_hot()
            .map(|classes| one_hot(run, input.channels, classes));
        let (made, nearest) = match one_hot.filter(|_| input.extent == [d, h, w]) {
            Some((made, instead)) => (made, instead),
            None => (String::new(), nearest),
        };
        return Err(Mismatch::Samples {
            model: graph.name.clone(),
            input: input.to_string(),
            data: run.data.clone(),
            samples: match sampling.crops() {
                Some(_) => format!(
                    "{d}x{h}x{w}, as `augmentation.crop` cuts them, with {channels} channels"
                ),
                None => format!("{d}x{h}x{w} with {channels} channels{made}"),
            },
            nearest,
        });
    }
    Ok(())
}

/// How many features a model reads of each sample.
pub fn features(graph: &Graph) -> usize {
    let mut nodes = graph.nodes.iter();
    let node = nodes.find(|node| node.op == Op::Features);
    node.map_or(0, |node| node.shape.channels)
}

/// Names of the features that a model reads of a dataset; none where it reads none.
pub fn feature_names(graph: &Graph, dataset: &Dataset) -> Vec<String> {
    match features(graph) {
        0 => Vec::new(),
        _ => dataset.features().to_vec(),
    }
}

/// Two ends of an error about channels that a step `one_hot` made: that it made them, and which step to write instead.
fn one_hot(run: &Run, reads: usize, classes: usize) -> (String, String) {
    let made = format!(", which `transform` with {{one_hot = {classes}}} makes");
    let steps = &run.samples.steps;
    let instead = if reads >= 2 {
        format!("{{one_hot = {reads}}}")
    } else if steps.len() == 1 {
        "no `transform`".to_owned()
    } else {
        "`transform` without {one_hot}".to_owned()
    };
    (made, instead)
}

/// A model of the zoo for the samples of a dataset, of the same family if possible.
fn model_for(sampling: &Sampling, asked: &str) -> Option<String> {
    let [channels, d, h, w] = sampling.shape();
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

fn targets_fit(
    run: &Run,
    graph: &Graph,
    (dataset, sampling): (&Dataset, &Sampling),
) -> Result<(), Mismatch> {
    if let Some(extent) = sampling.labels() {
        return labels_fit(run, graph, dataset.targets(), extent);
    }
    let (answer, is_classifier) = answer(graph);
    let targets = dataset.targets().len();
    let expected = if is_classifier { 1 } else { answer.channels };
    if answer.extent != [1; 3] {
        return Err(Mismatch::Vectors {
            model: graph.name.clone(),
            output: answer.to_string(),
            data: run.data.clone(),
            targets,
        });
    }
    if expected != targets {
        return Err(Mismatch::Targets {
            model: graph.name.clone(),
            expected,
            data: run.data.clone(),
            targets: dataset.targets().to_vec(),
        });
    }
    Ok(())
}

/// Shape of the model's output, and whether it is class scores.
pub fn answer(graph: &Graph) -> (Shape, bool) {
    let last = &graph.nodes[graph.nodes.len() - 1];
    let is_classifier = last.op.loss().map(Loss::target) == Some(TargetKind::Classes);
    (graph.node(last.inputs[0]).shape, is_classifier)
}

/// Number of classes of a classifier; `None` for a regression.
pub fn classes(graph: &Graph) -> Option<usize> {
    let (answer, is_classifier) = answer(graph);
    is_classifier.then_some(answer.channels)
}

/// The values that a run takes from its dataset.
pub fn accepted(run: &Run, graph: &Graph) -> Accepted {
    Accepted {
        transform: run.samples.transform,
        classes: classes(graph),
        ignored: ignored(graph),
    }
}

/// Looks at the data before a training: every rank that is a process at its share of the samples.
///
/// Errors: values or answers that would end the training. Gives what is only suspicious.
pub fn data(
    launch: &Launch<'_>,
    run: &Run,
    graph: &Graph,
    (dataset, preprocessing): (&Dataset, &Preprocessing),
    host: &Host,
) -> Result<Vec<String>, TrainError> {
    let context = launch.context();
    let status = |text: &str| {
        let is_last = text.is_empty();
        context.report(Event::Status { text, is_last });
    };
    let (local, cores) = launch.local(run.ranks, host);
    let threads = match launch.share() {
        (_, 1) => cores,
        (_, _) => (cores / local.max(1)).max(1),
    };
    let check = DataCheck {
        dataset,
        preparation: &preprocessing.preparation,
        accepted: accepted(run, graph),
        scope: run.check_data,
        share: launch.share(),
        threads,
        cancel: context.cancel(),
    };
    if run.check_data == CheckScope::All {
        status("check of the data");
    }
    let checked = launch.prepare(|| Ok::<_, TrainError>(check.run()?));
    if run.check_data == CheckScope::All {
        status("");
    }
    Ok(checked?.warnings)
}

/// The class index that the loss ignores.
pub fn ignored(graph: &Graph) -> Option<i64> {
    graph.nodes[graph.nodes.len() - 1].op.loss()?.ignored()
}

/// Checks the number of classes and the shape of the labels.
fn labels_fit(
    run: &Run,
    graph: &Graph,
    names: &[String],
    extent: [usize; 3],
) -> Result<(), Mismatch> {
    let labeled = |extent: [usize; 3]| {
        if extent == [1; 3] {
            "one class per sample".to_owned()
        } else {
            let [d, h, w] = extent;
            format!("a class at each of {d}x{h}x{w} positions")
        }
    };
    let (answer, is_classifier) = answer(graph);
    let (model, data) = (graph.name.clone(), run.data.clone());
    let (labels, classes) = (labeled(extent), names.len());
    if !is_classifier {
        return Err(Mismatch::Numbers {
            model,
            data,
            labels,
        });
    }
    if answer.extent != extent {
        let output = labeled(answer.extent);
        return Err(Mismatch::Labels {
            model,
            output,
            data,
            labels,
        });
    }
    if classes > answer.channels {
        let known = answer.channels;
        return Err(Mismatch::Classes {
            model,
            known,
            data,
            classes,
        });
    }
    Ok(())
}

/// Checks that no class of the model is one that the dataset leaves out.
fn ignored_fits(graph: &Graph, dataset: &Dataset) -> Result<(), DataError> {
    let scores = 0..classes(graph).unwrap_or(0) as i64;
    let left_out = dataset.ignored_by_index();
    let class = left_out.filter(|class| scores.contains(class) && ignored(graph) != left_out);
    class.map_or(Ok(()), |class| {
        Err(DataError::LeftOut {
            path: dataset.path().to_path_buf(),
            class,
            model: graph.name.clone(),
        })
    })
}

/// Checks that there are training samples for a batch.
pub fn batch_fits(run: &Run, sampling: &Sampling) -> Result<(), Mismatch> {
    let samples = sampling.samples(Split::Train);
    if samples == 0 {
        let data = run.data.clone();
        return Err(Mismatch::Empty { data });
    }
    if run.batch > samples {
        let (batch, data) = (run.batch / run.accumulate, run.data.clone());
        return Err(if run.accumulate == 1 || batch > samples {
            Mismatch::Batch {
                batch,
                data,
                samples,
            }
        } else {
            Mismatch::Accumulated {
                batch,
                accumulate: run.accumulate,
                data,
                samples,
                nearest: (samples / batch).max(1),
            }
        });
    }
    Ok(())
}

/// Checks that there are validation samples where the learning rate follows their loss.
pub fn schedule_fits(run: &Run, dataset: &Dataset) -> Result<(), Mismatch> {
    if run.schedule.needs_validation() && dataset.samples(Split::Validation) == 0 {
        let data = run.data.clone();
        return Err(Mismatch::Plateau { data });
    }
    Ok(())
}

/// Checks that the run has the metric by which the best checkpoint is chosen.
pub fn metric_fits(run: &Run, graph: &Graph, dataset: &Dataset) -> Result<(), TrainError> {
    let has_validation = dataset.samples(Split::Validation) > 0;
    let classes = classes(graph);
    let is_classifier = classes.is_some();
    let fits = |metric: BestMetric| {
        let (validation, classifier) = metric.needs();
        (!validation || has_validation)
            && classifier.is_none_or(|it| it == is_classifier)
            && (metric != BestMetric::SampleDice || classes > Some(1))
    };
    let needed = run.metrics_needed();
    let Some((key, metric)) = needed.into_iter().find(|&(_, metric)| !fits(metric)) else {
        return Ok(());
    };
    let need = match metric.needs() {
        (_, Some(true)) if classes == Some(1) => "a class besides class 0",
        (_, Some(true)) => "classes and validation samples",
        (_, Some(false)) => "targets of a regression and validation samples",
        (_, None) => "validation samples",
    };
    let possible = BestMetric::CHOICES.into_iter();
    let possible = possible.filter(|&(_, metric)| fits(metric));
    let possible: Vec<String> = possible.map(|(name, _)| format!("\"{name}\"")).collect();
    Err(TrainError::NoMetric {
        key,
        need,
        data: run.data.clone(),
        possible: possible.join(", "),
    })
}

/// Checks that the output folder is not the dataset.
pub fn output_fits(run: &Run, environment: &Environment) -> Result<(), OutputError> {
    let Some(folder) = &run.output else {
        return Ok(());
    };
    let [output, data] = [folder, &run.data].map(|path| fs::canonicalize(path).ok());
    if output.is_some() && output == data {
        return Err(OutputError::IsDataset {
            output: folder.clone(),
            nearest: free_folder::anywhere(environment),
        });
    }
    Ok(())
}

/// Says what frozen batch norms normalize with, if there are some.
pub fn note_frozen_norms(launch: &Launch<'_>, run: &Run, graph: &Graph) {
    let is_frozen = |node: &&Node| {
        let parameters = || node.parameters.iter().map(|&id| graph.parameter(id));
        matches!(node.op, Op::BatchNorm { .. })
            && parameters().any(|one| one.is_frozen && !one.is_constant)
            && !parameters().any(Parameter::is_trained)
    };
    let norms = graph.nodes.iter().filter(is_frozen).count();
    if norms == 0 || !launch.is_first() {
        return;
    }
    let what = if run.freeze_statistics {
        "keep their running statistics and normalize with them"
    } else {
        "update their running statistics and normalize with those of the mini-batch"
    };
    let text = format!(
        "frozen batch norms ({norms}) {what} (`freeze_statistics = {}`)",
        run.freeze_statistics
    );
    launch.context().report(Event::Note(&text));
}
