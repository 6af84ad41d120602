//! Text of a calibration.

use crate::table::{Side, Table, write_pairs};
use partita::Calibrated;
use std::io::{self, Write};

/// Writes the errors of the fit by family of kernels, and the rates of the machine.
pub fn calibrate(calibrated: &Calibrated, out: &mut dyn Write) -> io::Result<()> {
    let (machine, calibration) = (&calibrated.machine, &calibrated.calibration);
    let validation = &calibrated.validation;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut table = Table::new(&[
        ("kernels", Side::Left),
        ("number", Side::Right),
        ("median error", Side::Right),
        ("by time", Side::Right),
        ("total", Side::Right),
    ]);
    let all = ("all".to_owned(), validation.all);
    let rows = validation
        .families
        .iter()
        .map(|(name, errors)| (name.clone(), *errors));
    for (name, errors) in rows.chain([all]) {
        table.row(vec![
            name,
            errors.kernels.to_string(),
            percent(errors.median),
            percent(errors.mean_by_time),
            percent(errors.total),
        ]);
    }
    writeln!(out, "Errors of the kernel estimates by cross-validation:\n")?;
    table.write(out)?;
    writeln!(out)?;
    write_pairs(
        out,
        &[
            ("machine", machine.name.clone()),
            ("file", calibrated.file.display().to_string()),
            (
                "ranks",
                format!(
                    "{} on each of {} host(s), {}",
                    calibration.ranks, machine.nodes.value, calibration.world
                ),
            ),
            (
                "peak",
                format!(
                    "{:.1} Gflop/s a rank",
                    machine.device.peak_flops_f32.value.0 / 1e9
                ),
            ),
            (
                "memory",
                format!(
                    "{:.1} GB/s a rank",
                    machine.device.memory_bandwidth.value.0 / 1e9
                ),
            ),
        ],
    )
}
