//! Prefetching of samples: a thread reads them in pieces, of which few are held at a time. Predictions are stored
//! in pieces, too.

use crate::{Body, Dtype, Item, Load, Store, View, Work};
use partita_space::Bytes;

/// Most pieces that are read ahead of the rank.
pub const FILLED_PIECES_MAX: usize = 2;
/// Buffers for pieces: those read ahead, and the one being filled.
pub const PIECE_BUFFERS_MAX: usize = FILLED_PIECES_MAX + 1;
/// Largest piece of several samples. Handing over a small sample alone takes longer than reading it.
const PIECE_BYTES: usize = 1 << 18;

/// Samples in a piece, given the bytes of the rank's part of a sample.
pub fn samples_per_piece(bytes: usize) -> usize {
    (PIECE_BYTES / bytes.max(1)).max(1)
}

/// Bytes of the buffers for the loads of a body: pieces of samples and of targets, which are reused. The
/// chunk cache of the HDF5 library is not included.
pub(crate) fn buffer_bytes(body: &Body) -> Bytes {
    let of = |item: Item| {
        let loads = body.tasks.iter().filter_map(|task| match &task.work {
            Work::Load(load) if load.item == item => Some(load_bytes(body, load)),
            Work::Load(_)
            | Work::Store(_)
            | Work::Compute { .. }
            | Work::Exchange(_)
            | Work::Collective(_) => None,
        });
        loads.max().unwrap_or_default()
    };
    let stores = body.tasks.iter().map(|task| match &task.work {
        Work::Store(store) => store_bytes(body, store),
        Work::Load(_) | Work::Compute { .. } | Work::Exchange(_) | Work::Collective(_) => Bytes(0),
    });
    let loads = [Item::Sample, Item::Target, Item::Features].map(of);
    loads.into_iter().sum::<Bytes>() + stores.max().unwrap_or_default()
}

/// The views of a prediction that are stored one after the other: planes of a sample, or rows of a plane that is
/// larger than a piece.
pub fn stored_pieces(source: &View, dtype: Dtype) -> impl Iterator<Item = View> + use<> {
    let [samples, depth, height, width, channels] = source.extent;
    let row = (width * channels * dtype.size()).max(1);
    let rows = (PIECE_BYTES / row).clamp(1, height.max(1));
    let source = *source;
    let planes = (0..samples).flat_map(move |n| (0..depth).map(move |d| (n, d)));
    planes.flat_map(move |(n, d)| {
        (0..height).step_by(rows).map(move |h| {
            let mut piece = source;
            piece.start[0] += n;
            piece.start[1] += d;
            piece.start[2] += h;
            piece.extent = [1, 1, rows.min(height - h), width, channels];
            piece
        })
    })
}

/// Bytes of the buffers that one store takes: a piece as it lies in the arena, and in the order of the file.
pub(crate) fn store_bytes(body: &Body, store: &Store) -> Bytes {
    let dtype = body.buffer(store.source.buffer).dtype;
    let pieces = stored_pieces(&store.source, dtype);
    let largest = pieces.take(1).map(|piece| piece.bytes(&body.buffers).0);
    Bytes(2 * largest.max().unwrap_or_default())
}

/// Bytes of the buffers that one load takes.
pub(crate) fn load_bytes(body: &Body, load: &Load) -> Bytes {
    let samples = load.target.extent[0] as u64;
    if samples == 0 {
        return Bytes(0);
    }
    let elements = load.target.volume() as u64 / samples;
    let dtype = body.buffer(load.target.buffer).dtype;
    // Targets are converted to floats.
    let (element, apart) = match load.item {
        Item::Sample => (dtype.size() as u64, dtype.size() as u64),
        // Those of a table are in memory.
        Item::Features => (Dtype::F32.size() as u64, 0),
        // Labels are stored as integers.
        Item::Target => (Dtype::F32.size() as u64, Dtype::I16.size() as u64),
    };
    let bytes = elements * element;
    let at_once = samples_per_piece(bytes as usize) as u64;
    let pieces = samples.div_ceil(at_once).min(PIECE_BUFFERS_MAX as u64);
    let piece = at_once.min(samples) * elements;
    let mut held = pieces * piece * element;
    // A buffer for a single sample: labels always need one, other samples where they share a piece.
    if at_once > 1 || load.item == Item::Target {
        held += elements * apart;
    }
    // A piece converted to the type of the program.
    if load.item != Item::Sample && dtype == Dtype::F64 {
        held += piece * dtype.size() as u64;
    }
    Bytes(held)
}
