//! The file on a local disk that has the units of one rank for which it has no memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use partita_files::{reserve, scratch};
use partita_formats::slab::{self, Region4};
use partita_formats::{DataError, Samples};
use partita_space::{Bytes, Rank};

use super::append_part;

/// Elements of units, one unit after the other, as little-endian numbers. The file has no name, so that it is gone when
/// the process ends, whatever ends it.
pub(crate) struct SpillFile {
    file: File,
    /// Where it was made.
    path: PathBuf,
    bytes: Bytes,
}

impl SpillFile {
    /// Takes room for this many bytes of a rank in a folder.
    ///
    /// Errors: the folder cannot be written to, or has no room.
    pub(crate) fn create(folder: &Path, rank: Rank, bytes: Bytes) -> Result<Self, DataError> {
        let path = folder.join(format!("partita-samples.rank-{rank}"));
        let made = scratch(&path).and_then(|file| reserve(&file, bytes.0).map(|()| file));
        match made {
            Ok(file) => Ok(Self { file, path, bytes }),
            Err(error) => Err(failed(&path, bytes, "made", &error)),
        }
    }

    /// Writes the elements of a unit at an offset.
    ///
    /// Errors: a full disk, and others of the device.
    pub(crate) fn write(&self, at: u64, samples: &Samples) -> Result<(), DataError> {
        let mut at = At {
            file: &self.file,
            at,
        };
        let written = samples.write_to(&mut at);
        written.map_err(|error| failed(&self.path, self.bytes, "written", &error))
    }

    /// Replaces `out` by a part of the unit at an offset. `rows` is a buffer. Returns the bytes that were read.
    ///
    /// A part that is cut along the innermost dim is read with whole rows.
    /// Errors: those of the device. Panics if the part is not inside the unit.
    pub(crate) fn read(
        &self,
        at: u64,
        (unit, part): (&Region4, &Region4),
        rows: &mut Samples,
        out: &mut Samples,
    ) -> Result<Bytes, DataError> {
        let element = out.dtype().size_bytes() as u64;
        let mut bytes = Bytes(0);
        let mut read = |start: usize, count: usize, to: &mut Samples| {
            let mut input = At {
                file: &self.file,
                at: at + start as u64 * element,
            };
            bytes += Bytes(count as u64 * element);
            let read = to.read_from(count, &mut input);
            read.map_err(|error| failed(&self.path, self.bytes, "read", &error))
        };
        out.clear();
        if unit == part {
            read(0, slab::elements(unit), out)?;
            return Ok(bytes);
        }
        if rows.dtype() != out.dtype() {
            *rows = Samples::new(out.dtype());
        }
        out.reserve_exact(slab::elements(part));
        for run in runs(unit, part) {
            read(offset(unit, &run), slab::elements(&run), rows)?;
            append_part(&run, rows, &within(&run, part), out);
        }
        Ok(bytes)
    }
}

/// Regions that lie without gaps in a unit, and hold a part of it in its order.
fn runs(unit: &Region4, part: &Region4) -> Vec<Region4> {
    let [channels, depth, height, width] = part.clone();
    let whole_width = unit[3].clone();
    if (&height, &width) == (&unit[2], &unit[3]) {
        let one = |c: usize| [c..c + 1, depth.clone(), height.clone(), width.clone()];
        return channels.map(one).collect();
    }
    let plane = |c: usize, z: usize| [c..c + 1, z..z + 1, height.clone(), whole_width.clone()];
    channels
        .flat_map(|c| depth.clone().map(move |z| (c, z)))
        .map(|(c, z)| plane(c, z))
        .collect()
}

/// Index of the first element of a region in a unit.
fn offset(unit: &Region4, region: &Region4) -> usize {
    let dims = unit.iter().zip(region);
    dims.fold(0, |offset, (unit, region)| {
        offset * unit.len() + region.start - unit.start
    })
}

/// What of a part is in a run.
fn within(run: &Region4, part: &Region4) -> Region4 {
    let both = |dim: usize| -> Range<usize> {
        run[dim].start.max(part[dim].start)..run[dim].end.min(part[dim].end)
    };
    [both(0), both(1), both(2), both(3)]
}

fn failed(path: &Path, bytes: Bytes, action: &'static str, error: &io::Error) -> DataError {
    DataError::Spill {
        path: path.to_owned(),
        bytes,
        action,
        reason: error.to_string(),
    }
}

/// A position in a file, which other threads read and write as well.
struct At<'f> {
    file: &'f File,
    at: u64,
}

impl io::Read for At<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl io::Write for At<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
