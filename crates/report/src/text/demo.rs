//! Text of the demonstration.

use crate::table::{Side, Table};
use partita::demo::BaselineErrors;
use std::io::{self, Write};

/// Writes the errors of the network beside those of baselines.
pub fn baselines(errors: &[BaselineErrors], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("mean absolute error", Side::Left),
        ("mean", Side::Right),
        ("ridge", Side::Right),
        ("network", Side::Right),
        ("network / mean", Side::Right),
        ("network / ridge", Side::Right),
    ]);
    for one in errors {
        table.row(vec![
            one.target.clone(),
            format!("{:.4}", one.mean),
            format!("{:.4}", one.ridge),
            format!("{:.4}", one.network),
            format!("{:.3}", one.network / one.mean),
            format!("{:.3}", one.network / one.ridge),
        ]);
    }
    table.write(out)
}
