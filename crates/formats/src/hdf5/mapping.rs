//! Virtual datasets, whose values lie in arrays of other files.
//!
//! Each source is read where it lies: the library would make the whole array in memory for each read, with the fill
//! value where a source is missing.
//! Source: HDF5 File Format Specification 3.0, section IV.A.2.i (data layout, version 4, virtual storage).

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use rust_hdf5::{H5Dataset, Selection, VirtualMapping};

use super::links::{Beside, beside};
use super::{Hdf5File, fill_of, guarded};
use crate::array::{Access, Opened, StoredArray};
use crate::decode_memory;
use crate::element::{Element, Elements};
use crate::read_error::ReadError;

/// Sources that are kept open.
const OPEN_MAX: usize = 64;

/// A box: first elements and extents.
type Span = (Vec<u64>, Vec<u64>);

/// A virtual dataset.
pub(super) struct Mapped {
    element: Element,
    pieces: Vec<Piece>,
    /// Value of what no source has, alone.
    fill: Option<Elements>,
    open: RefCell<HashMap<(PathBuf, String), Opened>>,
    access: Access,
    depth: usize,
}

/// A part of the array, and where it lies.
struct Piece {
    to: Span,
    file: PathBuf,
    is_outside: bool,
    key: String,
    from: Selection,
}

impl Mapped {
    /// Finds the sources of a virtual dataset of a file.
    ///
    /// Errors: sources that do not exist, and parts without one, unless `fill`; parts that are no boxes.
    pub(super) fn open(
        path: &Path,
        array: &H5Dataset,
        element: &Element,
        access: Access,
        depth: usize,
    ) -> Result<Self, ReadError> {
        let (shape, fill) = (array.shape(), access.fill);
        let mut pieces = Vec::new();
        for mapping in guarded(|| array.virtual_mappings())? {
            match Piece::of(path, &mapping, (&shape, access))? {
                Some(piece) => pieces.push(piece),
                None if fill => {}
                None => {
                    return Err(ReadError::Unsupported(format!(
                        "it is a virtual dataset, and its source {} does not exist beside it; put it there, or take \
                         the fill value for its part with `--fill` of `partita data convert`",
                        mapping.source_file_name
                    )));
                }
            }
        }
        let product = |extents: &mut dyn Iterator<Item = u64>| extents.fold(1, u64::saturating_mul);
        let values = product(&mut shape.iter().map(|&extent| extent as u64));
        let mapped = pieces
            .iter()
            .map(|piece| product(&mut piece.to.1.iter().copied()));
        let mapped = mapped.fold(0, u64::saturating_add);
        if overlap(&mut pieces) || (mapped != values && !fill) {
            return Err(ReadError::Unsupported(format!(
                "it is a virtual dataset whose sources give {mapped} of its {values} values, or some of them twice; \
                 give each one source, or take the fill value for the others with `--fill` of `partita data convert`"
            )));
        }
        Ok(Self {
            element: element.clone(),
            pieces,
            fill: if fill {
                Some(fill_of(array, element)?)
            } else {
                None
            },
            open: RefCell::default(),
            access,
            depth,
        })
    }

    /// Files that are read by permission alone; those of the sources, too.
    pub(super) fn external(&self) -> Result<Vec<PathBuf>, ReadError> {
        let mut found: BTreeSet<PathBuf> = BTreeSet::new();
        if !self.access.external {
            return Ok(Vec::new());
        }
        let mut seen = HashSet::new();
        for piece in &self.pieces {
            if seen.insert((&piece.file, &piece.key)) {
                found.extend(piece.is_outside.then(|| piece.file.clone()));
                found.extend(self.source(piece)?.external);
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Opens the source of a piece.
    fn source(&self, piece: &Piece) -> Result<Opened, ReadError> {
        let file = Hdf5File::open(&piece.file)
            .map_err(|error| ReadError::Unsupported(error.to_string()))?;
        let opened = file.opened(&piece.key, self.access, self.depth + 1);
        opened.map_err(|error| piece.named(error))
    }

    /// Reads what a piece has of a box.
    fn read_piece(
        &self,
        piece: &Piece,
        (starts, counts): (&[usize], &[usize]),
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        let dims = starts.len();
        let (first, extents) = &piece.to;
        let low: Vec<usize> = (0..dims)
            .map(|dim| starts[dim].max(first[dim] as usize))
            .collect();
        let ends = (0..dims)
            .map(|dim| (starts[dim] + counts[dim]).min((first[dim] + extents[dim]) as usize));
        let size: Option<Vec<usize>> = ends
            .zip(&low)
            .map(|(end, &low)| end.checked_sub(low).filter(|&size| size > 0))
            .collect();
        let Some(size) = size else {
            return Ok(());
        };
        let mut open = self.open.borrow_mut();
        let name = (piece.file.clone(), piece.key.clone());
        if !open.contains_key(&name) {
            if open.len() == OPEN_MAX {
                open.clear();
            }
            open.insert(name.clone(), self.source(piece)?);
        }
        let source = &open[&name];
        let (from_starts, from_counts) = piece
            .source_box(source, &self.element, &low, &size)
            .map_err(|error| piece.named(error))?;
        let mut values = out.same_type();
        let elements: usize = size.iter().product();
        let _claim = decode_memory::claim((elements * self.element.size()) as u64)?;
        values.resize(elements)?;
        source
            .array
            .read(&from_starts, &from_counts, &mut values)
            .map_err(|error| piece.named(error))?;
        scatter(&values, &size, (&low, starts, counts), out);
        Ok(())
    }
}

/// Copies a box into one that contains it, row by row.
pub(super) fn scatter(
    values: &Elements,
    size: &[usize],
    (low, starts, counts): (&[usize], &[usize], &[usize]),
    out: &mut Elements,
) {
    let row = size.last().copied().unwrap_or(1);
    for number in 0..values.len() / row {
        let (mut rest, mut stride) = (number, 1);
        let mut to = 0;
        for dim in (0..size.len()).rev() {
            let within = if dim + 1 == size.len() {
                0
            } else {
                let within = rest % size[dim];
                rest /= size[dim];
                within
            };
            to += (low[dim] - starts[dim] + within) * stride;
            stride *= counts[dim];
        }
        values.copy_to(number * row, row, out, to);
    }
}

impl StoredArray for Mapped {
    fn read(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        if let Some(fill) = &self.fill {
            (0..out.len()).for_each(|at| fill.copy_to(0, 1, out, at));
        }
        // Sorted by their first elements, so that none beyond the box is looked at.
        let end =
            (starts.first().copied().unwrap_or(0) + counts.first().copied().unwrap_or(1)) as u64;
        let before = |piece: &&Piece| piece.to.0.first().is_none_or(|&first| first < end);
        for piece in self.pieces.iter().take_while(before) {
            self.read_piece(piece, (starts, counts), out)?;
        }
        Ok(())
    }
}

impl Piece {
    fn named(&self, error: ReadError) -> ReadError {
        let (file, key) = (self.file.display(), &self.key);
        error.map(|reason| format!("its source {file}, `{key}`: {reason}"))
    }

    /// A mapping of a virtual dataset; `None` where its file does not exist.
    fn of(
        path: &Path,
        mapping: &VirtualMapping,
        (shape, access): (&[usize], Access),
    ) -> Result<Option<Self>, ReadError> {
        let not_boxes = || {
            ReadError::Unsupported(format!(
                "it is a virtual dataset that takes parts of {} that are no single boxes, or grow, which is not \
                 read; copy it to an ordinary dataset with h5py",
                mapping.source_file_name
            ))
        };
        let selections = [&mapping.virtual_selection, &mapping.source_selection];
        if selections
            .iter()
            .any(|selection| selection.unlim_dim().is_some())
        {
            return Err(not_boxes());
        }
        let dims: Vec<u64> = shape.iter().map(|&extent| extent as u64).collect();
        let mut boxes = mapping
            .virtual_selection
            .to_boxes(&dims)
            .map_err(|_| not_boxes())?;
        let Some(to) = boxes.pop().filter(|_| boxes.is_empty()) else {
            return Err(not_boxes());
        };
        let ends =
            to.0.iter()
                .zip(&to.1)
                .map(|(start, count)| start.checked_add(*count));
        if !ends
            .zip(&dims)
            .all(|(end, &extent)| end.is_some_and(|end| end <= extent))
        {
            return Err("it maps values outside of its extents".into());
        }
        let unescape = |name: &str| name.replace("%%", "%");
        let file = beside(path, &unescape(&mapping.source_file_name), access)?;
        Ok(file.map(|Beside { path, is_outside }| Self {
            to,
            file: path,
            is_outside,
            key: unescape(&mapping.source_dset_name),
            from: mapping.source_selection.clone(),
        }))
    }

    /// Where a part of the piece lies in its source.
    fn source_box(
        &self,
        source: &Opened,
        element: &Element,
        low: &[usize],
        size: &[usize],
    ) -> Result<(Vec<usize>, Vec<usize>), ReadError> {
        let dims: Vec<u64> = source.shape.iter().map(|&extent| extent as u64).collect();
        let boxes = self
            .from
            .to_boxes(&dims)
            .map_err(|error| error.to_string())?;
        let [(first, extents)] = boxes.as_slice() else {
            return Err(ReadError::unsupported(
                "parts that are no single boxes are not read; copy the virtual dataset to an ordinary one with h5py",
            ));
        };
        let wide = |extents: &[u64]| -> Vec<usize> {
            (0..extents.len())
                .filter(|&dim| extents[dim] != 1)
                .collect()
        };
        let (to, from) = (wide(&self.to.1), wide(extents));
        let is_same = to.len() == from.len()
            && to
                .iter()
                .zip(&from)
                .all(|(&to, &from)| self.to.1[to] == extents[from]);
        let ends = first
            .iter()
            .zip(extents)
            .map(|(first, extent)| first.saturating_add(*extent));
        let is_within = ends.zip(&dims).all(|(end, &extent)| end <= extent);
        if !is_same || !is_within || source.element != *element {
            return Err(ReadError::Unsupported(format!(
                "it has {} of shape {:?}, of which the virtual dataset takes {extents:?} from {first:?} on, as {} of \
                 {:?}; make them agree",
                source.element.name(),
                source.shape,
                element.name(),
                self.to.1
            )));
        }
        let mut starts: Vec<usize> = first.iter().map(|&first| first as usize).collect();
        let mut counts = vec![1; starts.len()];
        for (to, from) in to.into_iter().zip(from) {
            starts[from] += low[to] - self.to.0[to] as usize;
            counts[from] = size[to];
        }
        Ok((starts, counts))
    }
}

/// Sorts pieces by their first elements; whether two have values in common.
fn overlap(pieces: &mut [Piece]) -> bool {
    pieces.sort_by(|a, b| a.to.0.cmp(&b.to.0));
    (0..pieces.len()).any(|at| {
        let (first, extents) = &pieces[at].to;
        let end = |dim: usize| first[dim] + extents[dim];
        let is_near = |other: &&Piece| first.is_empty() || other.to.0[0] < end(0);
        let mut after = pieces[at + 1..].iter().take_while(is_near);
        after.any(|other| {
            (0..first.len()).all(|dim| {
                other.to.0[dim] < end(dim) && first[dim] < other.to.0[dim] + other.to.1[dim]
            })
        })
    })
}
