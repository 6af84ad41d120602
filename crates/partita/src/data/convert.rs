//! `data convert`: a dataset from users' files.

use super::error::DatasetError;
use partita_data::{Conversion, ConvertSpec, DatasetSummary};
use partita_files::free_bytes;
use partita_site::{Context, Event, free_folder};
use partita_space::Bytes;
use partita_space::Help;

/// Headers of the files, and the index without the numbers of the samples.
const BESIDE: u64 = 1 << 20;

/// Makes a dataset of users' files, and summarizes it.
///
/// On cancellation nothing is left. Errors: files without samples or answers, values that cannot be trained on,
/// a full disk.
pub fn convert_data(
    context: &Context,
    asked: &ConvertSpec,
) -> Result<DatasetSummary, DatasetError> {
    let conversion = Conversion::find(asked)?;
    for note in conversion.notes() {
        context.report(Event::Note(note));
    }
    let total = conversion.samples();
    let noun = "samples";
    let needed = conversion.bytes().0.saturating_add(BESIDE);
    let free = free_bytes(free_folder::existing(&asked.out)).ok().flatten();
    if let Some(free) = free.filter(|&free| free < needed) {
        return Err(DatasetError::NoRoom {
            noun,
            samples: total,
            needed: Bytes(needed),
            path: asked.out.clone(),
            free: Bytes(free),
            way_out: Box::new(Help::none().nearest("a folder on a file system with more room")),
        });
    }
    context.report(Event::Writing);
    let written = conversion.write(|made| {
        context.report(Event::Samples { noun, made, total });
        !context.is_cancelled()
    })?;
    let Some((_, warnings)) = written else {
        context.report(Event::SamplesStopped);
        let path = asked.out.clone();
        return Err(DatasetError::Interrupted { path });
    };
    // All labels were seen while they were written.
    Ok(DatasetSummary {
        warnings,
        ..partita_data::inspect(&asked.out)?
    })
}
