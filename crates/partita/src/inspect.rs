use crate::args::InspectArgs;
use crate::error::CliError;
use crate::model;
use crate::number::{gibi, giga, grouped};
use crate::table::{Side, Table, write_json, write_pairs};
use partita_graph::{Counts, Graph, LayerCount, Shape, count, text};
use serde_json::{Value, json};
use std::io::Write;

/// Shows a model: its layers and their totals, or its text form.
pub fn run(args: &InspectArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let graph = model::resolve(&args.model)?;
    if args.text {
        write!(out, "{}", text::print(&graph))?;
        return Ok(());
    }
    let counts = count(&graph);
    if args.json {
        return write_json(out, &record(&graph, &counts));
    }
    write_layers(&graph, &counts, out)?;
    writeln!(out)?;
    write_totals(&graph, &counts, out)
}

fn record(graph: &Graph, counts: &Counts) -> Value {
    let layers: Vec<Value> = counts.layers.iter().map(layer_record).collect();
    json!({
        "model": graph.name,
        "spatial_rank": graph.spatial_rank,
        "parameters": counts.parameters,
        "forward_flops": counts.forward_flops,
        "linear_flops": counts.linear_flops,
        "attention_flops": counts.attention_flops,
        "training_flops": counts.training_flops,
        "executed_flops": counts.executed_flops,
        "memory_bytes_per_sample": counts.memory_bytes_per_sample,
        "layers": layers,
    })
}

fn layer_record(layer: &LayerCount) -> Value {
    json!({
        "name": layer.name,
        "operation": layer.operation,
        "channels": layer.shape.channels,
        "extent": layer.shape.extent,
        "parameters": layer.parameters,
        "forward_flops": layer.forward_flops,
        "executed_flops": layer.executed_flops,
        "memory_bytes": layer.memory_bytes,
    })
}

fn write_layers(graph: &Graph, counts: &Counts, out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("layer", Side::Left),
        ("operation", Side::Left),
        ("channels", Side::Right),
        ("extent", Side::Left),
        ("parameters", Side::Right),
        ("forward", Side::Right),
        ("memory", Side::Right),
    ]);
    for layer in &counts.layers {
        table.row(vec![
            layer.name.clone(),
            layer.operation.to_owned(),
            layer.shape.channels.to_string(),
            extent(graph, layer.shape),
            grouped(layer.parameters),
            giga(layer.forward_flops),
            gibi(layer.memory_bytes),
        ]);
    }
    table.write(out)
}

/// `512x512x512`, with as many dims as the model has.
fn extent(graph: &Graph, shape: Shape) -> String {
    let dims = &shape.extent[3 - graph.spatial_rank..];
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    dims.join("x")
}

fn write_totals(graph: &Graph, counts: &Counts, out: &mut dyn Write) -> Result<(), CliError> {
    let linear = format!(
        "{} (linear layers, not in forward)",
        giga(counts.linear_flops)
    );
    let attention = format!("{} (not in forward)", giga(counts.attention_flops));
    let mut pairs = vec![
        ("model", graph.name.clone()),
        ("parameters", grouped(counts.parameters)),
        ("forward", giga(counts.forward_flops)),
        ("linear", linear),
        ("attention", attention),
        (
            "training",
            format!("{} (3 x forward)", giga(counts.training_flops)),
        ),
        (
            "executed",
            format!(
                "{} (forward and backward, as a step computes them)",
                giga(counts.executed_flops)
            ),
        ),
        ("memory", gibi(counts.memory_bytes_per_sample)),
    ];
    pairs.retain(|(key, _)| *key != "attention" || counts.attention_flops.0 > 0);
    write_pairs(out, &pairs)?;
    writeln!(out, "Flops and memory are those of one sample.")?;
    Ok(())
}
