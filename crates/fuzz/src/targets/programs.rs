//! Targets that read programs, predictions and traces.

use super::{put, text, verb};
use partita_program::{Program, live_at_peak};
use partita_verify::verify;
use std::path::Path;

/// Separator of the prediction and the trace of an input.
const BOUNDARY: &str = "\n=====\n";

/// Compares a prediction and a trace.
pub(super) fn trace(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let text = text(bytes)?;
    let (prediction, trace) = text.split_once(BOUNDARY).unwrap_or((text, text));
    let prediction = put(&folder.join("prediction.json"), prediction.as_bytes());
    let trace = put(&folder.join("trace.json"), trace.as_bytes());
    verb(&["compare", &prediction, &trace, "--json"])?;
    verb(&["compare", &prediction, &trace])?;
    Ok(())
}

/// The text of a program: read, printed and read again, counted and verified.
pub(super) fn program(bytes: &[u8], _: &Path) -> Result<(), String> {
    let program = Program::parse(text(bytes)?).map_err(|error| error.to_string())?;
    let printed = program.to_text();
    // Compared as texts, because NaN is not equal to itself.
    let again = Program::parse(&printed).map(|again| again.to_text());
    assert_eq!(
        again.as_ref(),
        Ok(&printed),
        "what is printed reads as another program"
    );
    assert_eq!(program.digest().len(), 16);
    // Figures of a faulty program are meaningless.
    verify(&program).map_err(|faults| faults.to_string())?;
    program.count();
    program.memory_max();
    partita_run::Footprint::largest(&program);
    program
        .bodies
        .iter()
        .for_each(|body| drop(live_at_peak(body)));
    program.class_sizes();
    program.representatives();
    program.group_sizes();
    Ok(())
}
