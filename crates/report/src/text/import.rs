//! Text of an imported network: what each operator became.

use crate::number::grouped;
use crate::table::{Side, Table, write_pairs};
use partita::ImportResult;
use std::io::{self, Write};

/// Writes what the operators of a network became, and what was written.
pub fn import(found: &ImportResult, out: &mut dyn Write) -> io::Result<()> {
    let columns = ["operator", "module", "layer"];
    let mut table = Table::new(&columns.map(|name| (name, Side::Left)));
    for layer in &found.layers {
        let line = layer.line.as_deref().unwrap_or("-");
        table.row(vec![
            layer.operator.clone(),
            layer.module.clone(),
            line.to_owned(),
        ]);
    }
    table.write(out)?;
    writeln!(out)?;
    let assumed = "assumed from the output; `--loss`, or `loss` in a run file, names another";
    let loss = if found.assumed_loss {
        format!("{} ({assumed})", found.loss)
    } else {
        found.loss.clone()
    };
    let mut pairs = vec![("loss", loss), ("parameters", grouped(found.parameters))];
    if !found.frozen.is_empty() {
        let names = found.frozen.join(", ");
        let text = format!(
            "{names} (no gradient in PyTorch; with a model file, `freeze` of the run file names them)"
        );
        pairs.push(("frozen", text));
    }
    pairs.extend(found.model.iter().map(|file| ("model", file.clone())));
    pairs.extend(found.weights.iter().map(|file| ("weights", file.clone())));
    write_pairs(out, &pairs)
}
