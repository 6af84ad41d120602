use crate::args::ModelsArgs;
use crate::error::CliError;
use crate::number::{gibi, giga, grouped};
use crate::table::{Side, Table, write_json};
use partita_graph::zoo::{self, Family};
use partita_graph::{Counts, count};
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

/// Lists the zoo: in JSON every model, as a table one of each family with the sizes of the others.
pub fn run(args: &ModelsArgs, out: &mut dyn Write) -> Result<(), CliError> {
    if args.json {
        let rows: Result<Vec<Row>, CliError> = zoo::names().into_iter().map(row).collect();
        return write_json(out, &rows?);
    }
    let mut table = Table::new(&[
        ("model", Side::Left),
        ("parameters", Side::Right),
        ("forward", Side::Right),
        ("training", Side::Right),
        ("memory per sample", Side::Right),
        ("sizes", Side::Left),
        ("variants", Side::Left),
    ]);
    for family in Family::ALL {
        let row = row(family.model(family.published_size(), ""))?;
        let sizes: Vec<String> = family.sizes().iter().map(usize::to_string).collect();
        let variants = family.suffixes().iter().filter(|suffix| !suffix.is_empty());
        let variants: Vec<String> = variants.map(|suffix| format!("+{suffix}")).collect();
        table.row(vec![
            row.model,
            grouped(row.parameters),
            giga(row.forward_flops),
            giga(row.training_flops),
            gibi(row.memory_bytes_per_sample),
            sizes.join(", "),
            variants.join(", "),
        ]);
    }
    table.write(out)
}

fn row(model: String) -> Result<Row, CliError> {
    let graph = zoo::build(&model).map_err(|error| CliError::run(&error))?;
    let counts: Counts = count(&graph);
    Ok(Row {
        model,
        parameters: counts.parameters,
        forward_flops: counts.forward_flops,
        training_flops: counts.training_flops,
        executed_flops: counts.executed_flops,
        memory_bytes_per_sample: counts.memory_bytes_per_sample,
    })
}
