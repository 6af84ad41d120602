use crate::args::ModelsArgs;
use crate::error::CliError;
use crate::number::{gibi, giga, grouped};
use crate::table::{Side, Table, write_json};
use partita_graph::{Counts, count, zoo};
use partita_space::{Bytes, Flops};
use serde::Serialize;
use std::io::Write;

/// A model of the zoo, per sample.
#[derive(Serialize)]
struct Row {
    model: String,
    parameters: u64,
    forward_flops: Flops,
    training_flops: Flops,
    executed_flops: Flops,
    memory_bytes_per_sample: Bytes,
}

/// Lists the zoo.
pub fn run(args: &ModelsArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let rows = rows()?;
    if args.json {
        return write_json(out, &rows);
    }
    let mut table = Table::new(&[
        ("model", Side::Left),
        ("parameters", Side::Right),
        ("forward", Side::Right),
        ("training", Side::Right),
        ("memory per sample", Side::Right),
    ]);
    for row in rows {
        table.row(vec![
            row.model,
            grouped(row.parameters),
            giga(row.forward_flops),
            giga(row.training_flops),
            gibi(row.memory_bytes_per_sample),
        ]);
    }
    table.write(out)
}

fn rows() -> Result<Vec<Row>, CliError> {
    let row = |name: String| {
        let graph = zoo::build(&name).map_err(|error| CliError::run(&error))?;
        let counts: Counts = count(&graph);
        Ok(Row {
            model: name,
            parameters: counts.parameters,
            forward_flops: counts.forward_flops,
            training_flops: counts.training_flops,
            executed_flops: counts.executed_flops,
            memory_bytes_per_sample: counts.memory_bytes_per_sample,
        })
    };
    zoo::names().into_iter().map(row).collect()
}
