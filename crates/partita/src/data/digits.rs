//! Datasets of strings of digits.

use super::error::DatasetError;
use super::maker::{DatasetMaker, MakeRequest, integer};
use partita_data::{DatasetSpec, DatasetSummary, Kind};
use partita_formats::{DType, Layout, Samples};
use partita_site::Context;
use partita_synth::{DigitString, DigitStrings, DigitsSpec, DigitsTask, TOKENS};
use std::sync::Arc;

/// The string, and the input of the decoder.
const CHANNELS: usize = 2;

/// A dataset of digit strings and their answers, token by token.
#[derive(Clone, Debug, PartialEq)]
pub struct DigitsRequest {
    /// Folder, seed and splits.
    pub make: MakeRequest,
    /// Number of samples over all splits, all with different strings.
    pub samples: usize,
    /// The answer to a string.
    pub task: DigitsTask,
    /// Digits of a string, or most digits of a summand, 1 to 512.
    pub digits: usize,
    /// Vary the number of digits from 1 on, as sums always do.
    pub vary: bool,
    /// Positions of a sample (default: smallest multiple of 8 that holds all samples).
    pub length: Option<usize>,
}

/// Makes a dataset of digit strings with a target token at each position, and summarizes it.
///
/// Errors: as [`make_cosmology`](super::make_cosmology).
pub fn make_digits(
    context: &Context,
    request: &DigitsRequest,
) -> Result<DatasetSummary, DatasetError> {
    let task = request.task;
    let name = match task {
        DigitsTask::Reverse => "reverse",
        DigitsTask::Sort => "sort",
        DigitsTask::Add => "add",
    };
    let spec = DigitsSpec {
        task,
        digits: request.digits,
        vary: request.vary,
        length: request.length,
        samples: request.samples,
        seed: request.make.seed,
    };
    let strings = DigitStrings::new(&spec).map_err(DatasetError::Spec)?;
    let maker = DatasetMaker::new(&request.make, "samples", request.samples)?;
    let [train, validation, test] = maker.splits();
    let extent = [1, 1, strings.length()];
    let mut asked = maker.asked("digits");
    asked.insert("task".to_owned(), name.into());
    asked.insert("digits".to_owned(), integer(spec.digits as u64));
    asked.insert(
        "vary".to_owned(),
        (spec.vary || task == DigitsTask::Add).into(),
    );
    asked.insert("length".to_owned(), integer(strings.length() as u64));
    let dataset = DatasetSpec {
        kind: Kind::Digits,
        shape: [CHANNELS, extent[0], extent[1], extent[2]],
        dtype: DType::Int16,
        targets: TOKENS.map(str::to_owned).to_vec(),
        labels: Some(extent),
        layout: Layout::Contiguous,
        train,
        validation,
        test,
        spec: asked,
    };
    let strings = Arc::new(strings);
    maker.make(
        context,
        &dataset,
        move |index| Ok(strings.make(index)),
        |writer, split, string: DigitString| {
            let (values, labels) = (Samples::I16(string.values), Samples::I16(string.labels));
            writer.append_labeled(split, &values, &labels)
        },
    )
}
