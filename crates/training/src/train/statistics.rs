//! Whose statistics the steps of `transform` take: those that weights or a checkpoint keep, or those of a dataset.

use super::checkpoint::Resume;
use super::error::TrainError;
use super::run::Run;
use crate::weights::{LoadedWeights, WeightsError};
use partita_data::{Dataset, Split};
use partita_formats::DataError;
use partita_input::{DataRecord, Preparation, Step, chain_text, fit};
use partita_site::launch::Launch;
use partita_site::{Context, Event, Host};
use std::path::Path;

/// The steps that weights or a checkpoint keep.
pub struct KeptSteps<'k> {
    /// The word for them: `weights` or `checkpoint`.
    owner: &'static str,
    /// The file or folder.
    path: &'k Path,
    /// None where they keep none, as those of other programs and earlier versions.
    steps: Option<&'k Preparation>,
    /// Names of the channels, in their order; empty where they keep none.
    channels: &'k [String],
    /// Whether a training takes their statistics, or those of its dataset.
    are_taken: bool,
}

impl<'k> KeptSteps<'k> {
    /// Those of weights, which are evaluated.
    pub fn of_weights(path: &'k Path, record: &'k DataRecord) -> Self {
        Self {
            owner: "weights",
            path,
            steps: record.preparation.as_ref(),
            channels: &record.channels,
            are_taken: true,
        }
    }

    /// Those from which a training goes on: of its checkpoint, else of the weights from which it starts.
    pub fn of_start(
        run: &Run,
        resume: Option<&'k Resume>,
        start: Option<&'k LoadedWeights>,
    ) -> Option<Self> {
        if let Some(resume) = resume {
            return Some(Self {
                owner: "checkpoint",
                ..Self::of_weights(resume.path(), &resume.state.data_record)
            });
        }
        let start = start?;
        Some(Self {
            are_taken: run.weights.as_ref().is_some_and(|it| it.takes_statistics),
            ..Self::of_weights(start.path(), start.record())
        })
    }

    /// Their statistics, if they have all steps of the run.
    ///
    /// Errors: statistics of another number of channels.
    fn of_run(&self, run: &Run, dataset: &Dataset) -> Result<Option<&'k Preparation>, DataError> {
        let Some(steps) = self
            .steps
            .filter(|steps| steps.asked() == run.samples.asked())
        else {
            return Ok(None);
        };
        let channels = dataset.shape()[0];
        if steps.suits(channels) {
            return Ok(Some(steps));
        }
        Err(DataError::BadWeights {
            path: self.path.to_owned(),
            reason: format!(
                "its statistics of `transform` ({}) do not suit the {channels} channel(s) of {}",
                steps.statistics_text(),
                dataset.path().display()
            ),
        })
    }

    /// Why a run cannot take their statistics.
    fn reason(&self, run: &Run) -> String {
        match self.steps {
            None => "keeps no statistics".to_owned(),
            Some(steps) => format!(
                "was trained with `transform` = {}, not {}",
                transform_text(&steps.asked()),
                transform_text(&run.samples.asked())
            ),
        }
    }

    /// A line for statistics that differ from those of the dataset.
    fn difference(&self, own: &Preparation, dataset: &Path, now: &Preparation) -> Option<String> {
        own.differs(now).then(|| {
            format!(
                "statistics of the {}: {}; those of the training split of {} now: {}",
                self.owner,
                own.statistics_text(),
                dataset.display(),
                now.statistics_text()
            )
        })
    }
}

/// All steps of `transform`, as a run file has them.
fn transform_text(steps: &[Step]) -> String {
    match chain_text(steps) {
        text if text.is_empty() => "\"identity\"".to_owned(),
        text => format!("[{text}]"),
    }
}

/// The steps with the statistics of the weights, or of the dataset `trained_on` where these keep none.
///
/// Errors: those of reading the training split; values that a step cannot take.
pub fn of_weights(
    launch: &Launch<'_>,
    run: &Run,
    kept: &KeptSteps<'_>,
    (trained_on, dataset): (&Path, &Dataset),
) -> Result<Preparation, TrainError> {
    let host = Host::local(launch.context().level());
    let report = |event: Event<'_>| {
        if launch.is_first() {
            launch.context().report(event);
        }
    };
    let open = || {
        Ok(Dataset::open_samples_with(trained_on, &run.keys())?
            .in_channel_order(kept.channels)?
            .0)
    };
    let file = kept.path.display();
    if let Some(own) = kept.of_run(run, dataset)? {
        if needs_statistics(run)
            && let Some(now) = of_dataset_now(launch, run, &host, open)?
            && let Some(line) = kept.difference(own, trained_on, &now)
        {
            report(Event::Note(&format!(
                "{line}; those of the weights are used"
            )));
        }
        return Ok(steps_of(run, own));
    }
    if kept.steps.is_some() {
        let text = format!("{file} {}; that of the run file is used", kept.reason(run));
        report(Event::Warning(&text));
    }
    let fitted = fitted(launch, run, &host, || {
        if needs_statistics(run) {
            open()
        } else {
            Ok(dataset.clone())
        }
    })?;
    if needs_statistics(run) {
        let text = format!(
            "{file} {}, so those of the training split of {} are used: {}",
            kept.reason(run),
            trained_on.display(),
            fitted.statistics_text()
        );
        report(Event::Note(&text));
    }
    Ok(fitted)
}

/// The steps of a training with their statistics, and a warning where those of its checkpoint are not those of the dataset.
///
/// Errors: those of reading the training split; values that a step cannot take; nothing to take from weights.
pub fn of_training(
    launch: &Launch<'_>,
    run: &Run,
    dataset: &Dataset,
    host: &Host,
    kept: Option<&KeptSteps<'_>>,
) -> Result<(Preparation, Option<String>), TrainError> {
    let of_dataset = || fitted(launch, run, host, || Ok(dataset.clone()));
    let Some(kept) = kept.filter(|_| needs_statistics(run)) else {
        return Ok((of_dataset()?, None));
    };
    let own = kept.of_run(run, dataset)?;
    match (own, kept.are_taken) {
        (Some(own), true) => {
            let now = of_dataset_now(launch, run, host, || Ok(dataset.clone()))?;
            let line = now.and_then(|now| kept.difference(own, dataset.path(), &now));
            let line = line.map(|line| format!("{line}; those of the {} are used", kept.owner));
            Ok((steps_of(run, own), line))
        }
        (Some(own), false) => {
            let now = of_dataset()?;
            if let Some(line) = kept.difference(own, dataset.path(), &now)
                && launch.is_first()
            {
                let text = format!(
                    "{line}; those of the dataset are used, `statistics = \"weights\"` under [weights] keeps the others"
                );
                launch.context().report(Event::Note(&text));
            }
            Ok((now, None))
        }
        (None, false) => Ok((of_dataset()?, None)),
        (None, true) if kept.owner == "weights" => Err(WeightsError::NoStatistics {
            file: kept.path.to_owned(),
            reason: kept.reason(run),
        }
        .into()),
        (None, true) => {
            let now = of_dataset()?;
            let text = format!(
                "the checkpoint {}, so those of the training split of {} are used: {}",
                kept.reason(run),
                dataset.path().display(),
                now.statistics_text()
            );
            Ok((now, Some(text)))
        }
    }
}

/// The steps that reading threads do, which are none where the first kernel does them.
fn steps_of(run: &Run, own: &Preparation) -> Preparation {
    if run.samples.steps.is_empty() {
        Preparation::default()
    } else {
        own.clone()
    }
}

fn needs_statistics(run: &Run) -> bool {
    run.samples.steps.iter().any(Step::needs_statistics)
}

/// The statistics of a dataset as it is, to compare others with them; none of one that is gone, empty or cannot be read.
fn of_dataset_now(
    launch: &Launch<'_>,
    run: &Run,
    host: &Host,
    dataset: impl FnOnce() -> Result<Dataset, DataError> + Send,
) -> Result<Option<Preparation>, TrainError> {
    let context = launch.context();
    launch.choose(|| {
        let found = dataset().ok();
        let found = found.filter(|dataset| dataset.samples(Split::Train) > 0);
        Ok(found.and_then(|dataset| computed(context, run, host, &dataset).ok()))
    })
}

/// The steps with the statistics of a dataset, computed on rank 0 for all ranks.
fn fitted(
    launch: &Launch<'_>,
    run: &Run,
    host: &Host,
    dataset: impl FnOnce() -> Result<Dataset, DataError> + Send,
) -> Result<Preparation, TrainError> {
    let context = launch.context();
    launch.choose(|| Ok::<_, TrainError>(computed(context, run, host, &dataset()?)?))
}

fn computed(
    context: &Context,
    run: &Run,
    host: &Host,
    dataset: &Dataset,
) -> Result<Preparation, DataError> {
    let times = context.environment().measured_times.as_ref();
    let cache = times.and_then(|file| file.parent());
    let status = |text: &str| {
        let is_last = text.is_empty();
        context.report(Event::Status { text, is_last });
    };
    if needs_statistics(run) {
        status("statistics of the training split");
    }
    let fitted = fit(&run.samples.steps, dataset, cache, host.cores_usable);
    status("");
    fitted
}
