//! Crops of volumes: which there are, those below their extents, and those on foreground.

use super::check;
use super::error::TrainError;
use super::run::Run;
use super::store::StoreKind;
use partita_data::{Dataset, Split};
use partita_formats::DataError;
use partita_graph::Graph;
use partita_input::{Foreground, Sampling};
use partita_site::launch::Launch;
use partita_site::{Event, Host};

/// The samples of a dataset as the run file says. Validation is by tiles only where the model has an output for each
/// position and ranks validate themselves.
///
/// Errors: those of [`Sampling::new`], with the crops that the model reads where there have to be some.
pub fn sampling(run: &Run, graph: &Graph, dataset: &Dataset) -> Result<Sampling, TrainError> {
    let (crops, augmentation) = (run.samples.crops, run.samples.augmentation);
    let sampling = Sampling::new(dataset, crops, augmentation).map_err(|mut error| {
        if let DataError::NoCrop { crop, .. } = &mut error {
            *crop = graph.nodes[0].shape.extent;
        }
        error
    })?;
    let (answer, _) = check::answer(graph);
    let has_positions = crops.is_some_and(|crops| crops.extent == answer.extent);
    let sampling = if has_positions && run.offload.validators.count() == 0 {
        sampling
    } else {
        sampling.for_validators()
    };
    Ok(sampling.with_one_hot(run.samples.one_hot()))
}

/// Says how volumes of these splits that are smaller than a crop are padded, if there are some.
pub fn note_padding(launch: &Launch<'_>, graph: &Graph, sampling: &Sampling, splits: &[Split]) {
    let count = |of: fn(&Sampling, Split) -> usize| -> usize {
        splits.iter().map(|&split| of(sampling, split)).sum()
    };
    let padded = count(Sampling::padded_volumes);
    if padded == 0 || !launch.is_first() {
        return;
    }
    let [_, d, h, w] = sampling.shape();
    let labels = match check::ignored(graph) {
        _ if sampling.labels() != Some([d, h, w]) => String::new(),
        Some(class) => format!(", labels with {class}, which the loss ignores"),
        None => ", labels with class 0".to_owned(),
    };
    let names: Vec<&str> = splits.iter().map(|split| split.name()).collect();
    let text = format!(
        "{padded} of {} volumes ({}) are smaller than the crop {d}x{h}x{w} and padded to it on both sides: values with 0, as \
         they are behind `transform`{labels}",
        count(Sampling::volumes),
        names.join(", ")
    );
    launch.context().report(Event::Note(&text));
}

/// The samples with crops on foreground, as a run asks for them: rank 0 looks for it in the class indices of the training
/// split, unless samples are made up.
///
/// Errors: those of reading; no class at each position.
pub fn on_foreground(
    launch: &Launch<'_>,
    run: &Run,
    dataset: &Dataset,
    sampling: Sampling,
    host: &Host,
) -> Result<Sampling, TrainError> {
    let is_read = run.store.kind != StoreKind::Synthetic;
    let Some(share) = run.samples.foreground.filter(|_| is_read) else {
        return Ok(sampling);
    };
    let context = launch.context();
    let status = |text: &str| {
        let is_last = text.is_empty();
        context.report(Event::Status { text, is_last });
    };
    let found = launch.choose(|| {
        status("foreground of the training split");
        let found = Foreground::find(dataset, host.cores_usable);
        status("");
        Ok::<Foreground, TrainError>(found?)
    })?;
    let (without, volumes) = (found.without(), dataset.samples(Split::Train));
    if without > 0 && launch.is_first() {
        let text = format!(
            "{without} of {volumes} training volumes have no class but 0, so all of their crops are anywhere"
        );
        context.report(Event::Note(&text));
    }
    Ok(sampling.with_foreground(share, found))
}
