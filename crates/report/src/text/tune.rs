//! Text of tuned kernels.

use crate::table::{Side, Table};
use partita::{Tuned, TunedKernel, TunedPoint};
use std::io::{self, Write};

/// Writes the convolutions and the whole step.
pub fn tune(tuned: &Tuned, out: &mut dyn Write) -> io::Result<()> {
    let processor = tuned.processor.as_deref().unwrap_or("unknown processor");
    writeln!(
        out,
        "{} convolutions of {} under {}, {} sample(s), {} rank(s) of {} thread(s), {} on {processor}\n",
        tuned.kernels.len(),
        tuned.model,
        tuned.strategy,
        tuned.batch,
        tuned.ranks,
        tuned.threads,
        tuned.simd,
    )?;
    let mut table = Table::new(&[
        ("layer", Side::Left),
        ("kernel", Side::Left),
        ("outputs", Side::Left),
        ("usual", Side::Right),
        ("undivided", Side::Right),
        ("by", Side::Left),
        ("choice", Side::Right),
        ("workspace", Side::Right),
        ("by", Side::Left),
    ]);
    for kernel in &tuned.kernels {
        table.row(row(kernel));
    }
    table.write(out)?;
    writeln!(out)?;
    let mut table = Table::new(&[
        ("workspace", Side::Left),
        ("convolutions", Side::Right),
        ("step", Side::Right),
        ("largest", Side::Right),
        ("memory", Side::Right),
    ]);
    for step in &tuned.steps {
        table.row(vec![
            step.workspace.clone(),
            step.convolution_seconds.to_string(),
            step.step_seconds.to_string(),
            step.workspace_bytes_max.to_string(),
            step.memory_bytes.to_string(),
        ]);
    }
    table.write(out)
}

/// Samples, positions along each dim of more than one, and channels.
fn extents([n, d, h, w, c]: [usize; 5]) -> String {
    let positions = [d, h, w].into_iter().filter(|&extent| extent > 1);
    let all = std::iter::once(n).chain(positions).chain([c]);
    let words: Vec<String> = all.map(|extent| extent.to_string()).collect();
    words.join("x")
}

fn row(kernel: &TunedKernel) -> Vec<String> {
    let seconds = |point: &Option<TunedPoint>| match point {
        Some(point) => point.seconds.to_string(),
        None => "-".to_owned(),
    };
    let name = |point: &Option<TunedPoint>| match point {
        Some(point) => point.configuration.clone(),
        None => "-".to_owned(),
    };
    let bytes = kernel.choice.as_ref();
    let bytes = bytes.map_or("-".to_owned(), |point| point.workspace_bytes.to_string());
    vec![
        kernel.layer.clone(),
        kernel.kernel.clone(),
        extents(kernel.extent),
        seconds(&kernel.usual),
        seconds(&kernel.undivided),
        name(&kernel.undivided),
        seconds(&kernel.choice),
        bytes,
        name(&kernel.choice),
    ]
}
