//! Text of the zoo.

use crate::number::{gibi, giga, grouped};
use crate::table::{Side, Table};
use partita::FamilySummary;
use std::io::{self, Write};

/// Writes one model of each family with the sizes and variants of the others.
pub fn models(families: &[FamilySummary], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("model", Side::Left),
        ("parameters", Side::Right),
        ("forward", Side::Right),
        ("training", Side::Right),
        ("memory per sample", Side::Right),
        ("sizes", Side::Left),
        ("variants", Side::Left),
    ]);
    for family in families {
        let row = &family.published;
        let sizes: Vec<String> = family.sizes.iter().map(usize::to_string).collect();
        table.row(vec![
            row.model.clone(),
            grouped(row.parameters),
            giga(row.forward_flops),
            giga(row.training_flops),
            gibi(row.memory_bytes_per_sample),
            sizes.join(", "),
            family.variants.join(", "),
        ]);
    }
    table.write(out)
}
