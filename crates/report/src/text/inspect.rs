//! Text of a model: layers, shapes, counts.

use crate::number::{gibi, giga, grouped};
use crate::table::{Side, Table, write_pairs};
use partita::Inspection;
use std::io::{self, Write};

/// Writes the layers of a model and their totals.
pub fn inspect(model: &Inspection, out: &mut dyn Write) -> io::Result<()> {
    write_layers(model, out)?;
    writeln!(out)?;
    write_totals(model, out)
}

fn write_layers(model: &Inspection, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("layer", Side::Left),
        ("operation", Side::Left),
        ("channels", Side::Right),
        ("extent", Side::Left),
        ("parameters", Side::Right),
        ("forward", Side::Right),
        ("memory", Side::Right),
    ]);
    for layer in &model.layers {
        table.row(vec![
            layer.name.clone(),
            layer.operation.to_owned(),
            layer.channels.to_string(),
            extent(model, layer.extent),
            grouped(layer.parameters),
            giga(layer.forward_flops),
            gibi(layer.memory_bytes),
        ]);
    }
    table.write(out)
}

/// `512x512x512`, with as many dims as the model has.
fn extent(model: &Inspection, extent: [usize; 3]) -> String {
    let dims = &extent[3 - model.spatial_rank..];
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    dims.join("x")
}

fn write_totals(model: &Inspection, out: &mut dyn Write) -> io::Result<()> {
    let linear = format!(
        "{} (linear layers, not in forward)",
        giga(model.linear_flops)
    );
    let attention = format!("{} (not in forward)", giga(model.attention_flops));
    let mut pairs = vec![
        ("model", model.model.clone()),
        ("parameters", grouped(model.parameters)),
        ("forward", giga(model.forward_flops)),
        ("linear", linear),
        ("attention", attention),
        (
            "training",
            format!("{} (3 x forward)", giga(model.training_flops)),
        ),
        (
            "executed",
            format!(
                "{} (forward and backward, as a step computes them)",
                giga(model.executed_flops)
            ),
        ),
        ("memory", gibi(model.memory_bytes_per_sample)),
    ];
    pairs.retain(|(key, _)| *key != "attention" || model.attention_flops.0 > 0);
    write_pairs(out, &pairs)?;
    writeln!(out, "Flops and memory are those of one sample.")?;
    Ok(())
}
