//! Text of a check of the machine.

use crate::table::{Side, Table, write_pairs};
use partita::{CoreHolder, DeviceFinding, Diagnosis, Host, LibraryFinding, MpiFinding};
use partita_space::Bytes;
use std::io::{self, Write};

/// Writes processor, memory and libraries of the machine.
pub fn doctor(diagnosis: &Diagnosis, out: &mut dyn Write) -> io::Result<()> {
    write_host(&diagnosis.host, &diagnosis.pinned, out)?;
    writeln!(out)?;
    write_libraries(&diagnosis.libraries, out)?;
    write_devices(&diagnosis.devices, out)?;
    if let Some(remedy) = &diagnosis.devices_remedy {
        writeln!(out, "- devices: {remedy}")?;
    }
    write_mpi(&diagnosis.mpi, out)
}

fn write_mpi(finding: &MpiFinding, out: &mut dyn Write) -> io::Result<()> {
    if let (Some(file), Some(family)) = (&finding.file, finding.family) {
        writeln!(out)?;
        let threads = finding
            .thread_level
            .unwrap_or("unknown without a launcher: mpirun -n 1 partita doctor");
        write_pairs(
            out,
            &[
                ("MPI library", file.display().to_string()),
                ("family", family.to_owned()),
                ("version", finding.version.clone().unwrap_or_default()),
                ("thread level", threads.to_owned()),
            ],
        )?;
    }
    Ok(())
}

fn write_devices(findings: &[DeviceFinding], out: &mut dyn Write) -> io::Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        ("--device", Side::Left),
        ("name", Side::Left),
        ("memory", Side::Right),
        ("a rank at most", Side::Right),
        ("driver", Side::Left),
    ]);
    for finding in findings {
        let driver = match finding.lacks {
            Some(lacks) => format!("cannot be used: no {lacks}"),
            None => format!("{}, {}", finding.platform, finding.version),
        };
        table.row(vec![
            finding.device.to_owned(),
            finding.name.clone(),
            finding.memory_bytes.to_string(),
            finding.allocation_bytes_max.to_string(),
            driver,
        ]);
    }
    writeln!(out)?;
    table.write(out)
}

fn write_host(host: &Host, pinned: &[CoreHolder], out: &mut dyn Write) -> io::Result<()> {
    let or_unknown =
        |bytes: Option<Bytes>| bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
    let count = |cores: Option<usize>| cores.map_or("?".to_owned(), |cores| cores.to_string());
    let cores = format!(
        "{} usable, {} in the machine ({} physical)",
        host.cores_usable,
        count(host.cores_logical),
        count(host.cores_physical)
    );
    let memory = format!(
        "{}, available {}",
        or_unknown(host.memory_bytes),
        or_unknown(host.memory_bytes_available)
    );
    let mut limits = Vec::new();
    limits.extend(host.cores_limit.map(|cores| format!("{cores:.2} cores")));
    limits.extend(host.memory_bytes_limit.map(|bytes| bytes.to_string()));
    if limits.is_empty() {
        limits.push("none".to_owned());
    }
    let processor = host.processor.as_deref().unwrap_or("unknown");
    let mut pairs = vec![
        ("processor", processor.to_owned()),
        ("cores", cores),
        (
            "vectors",
            format!("{}, {} of f32", host.simd, host.simd_lanes_f32),
        ),
    ];
    for cache in &host.caches {
        let text = format!(
            "level {} {}, {}, shared by cores {}",
            cache.level,
            cache.kind.to_lowercase(),
            cache.bytes,
            cache.cores
        );
        pairs.push(("cache", text));
    }
    for holder in pinned {
        pairs.push(("pinned", holder.to_string()));
    }
    pairs.push(("memory", memory));
    pairs.push(("group limits", limits.join(", ")));
    pairs.push(("GPUs", host.gpus.to_string()));
    write_pairs(out, &pairs)
}

fn write_libraries(findings: &[LibraryFinding], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("library", Side::Left),
        ("for", Side::Left),
        ("found", Side::Left),
    ]);
    for finding in findings {
        let path = finding.path.as_ref();
        table.row(vec![
            finding.name.to_owned(),
            finding.purpose.to_owned(),
            path.map_or("no".to_owned(), |path| path.display().to_string()),
        ]);
    }
    table.write(out)?;
    for finding in findings {
        if let Some(remedy) = &finding.remedy {
            writeln!(out, "- {}: {remedy}", finding.name)?;
        }
    }
    writeln!(out, "Training on this machine alone needs none of them.")?;
    Ok(())
}
