use super::making::{Making, integer};
use crate::args::{DigitsArgs, DigitsTaskName};
use crate::error::CliError;
use partita_data::{DType, DatasetSpec, Kind, Layout, Samples};
use partita_synth::{DigitString, DigitStrings, DigitsSpec, DigitsTask, TOKENS};
use std::io::Write;
use std::sync::Arc;

/// The string, and what a decoder has read.
const CHANNELS: usize = 2;

/// Makes a dataset of digit strings with a token to be given at each position.
pub fn make_digits(args: &DigitsArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let (task, name) = match args.task {
        DigitsTaskName::Reverse => (DigitsTask::Reverse, "reverse"),
        DigitsTaskName::Sort => (DigitsTask::Sort, "sort"),
        DigitsTaskName::Add => (DigitsTask::Add, "add"),
    };
    let spec = DigitsSpec {
        task,
        digits: args.digits,
        vary: args.vary,
        length: args.length,
        samples: args.samples,
        seed: args.making.seed,
    };
    let strings = DigitStrings::new(&spec).map_err(|error| CliError::user(&error))?;
    let making = Making::new(&args.making, "samples", args.samples)?;
    let [train, validation, test] = making.splits();
    let extent = [1, 1, strings.length()];
    let mut asked = making.asked("digits");
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
    making.make(
        &dataset,
        move |index| Ok(strings.make(index)),
        |writer, split, string: DigitString| {
            let (values, labels) = (Samples::I16(string.values), Samples::I16(string.labels));
            writer.append_labeled(split, &values, &labels)
        },
        out,
    )
}
