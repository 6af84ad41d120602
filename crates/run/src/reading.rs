//! How samples are read behind the back of a rank: in pieces, of which few are held beside the arena.

use partita_program::{Body, Item, Work};
use partita_space::Bytes;

/// Pieces that wait for the rank; reading goes on while it computes, but not far ahead of it.
pub const WAITING_MAX: usize = 2;
/// Buffers for pieces of volumes: those that wait, and the one that is being filled.
pub const BUFFERS_MAX: usize = WAITING_MAX + 1;
/// Small samples share a piece of up to so many bytes: to hand one over and to wake the rank takes
/// longer than to read it.
const PIECE_BYTES: usize = 1 << 18;

/// Samples in a piece, where the rank's part of one has so many bytes.
pub fn at_once(bytes: usize) -> usize {
    (PIECE_BYTES / bytes.max(1)).max(1)
}

/// Bytes of the buffers that the source of a rank holds once the loads of this body have been made:
/// pieces of volumes, which are used again and again, and of targets. What the HDF5 library holds for
/// itself where storage is chunked comes on top.
pub fn buffer_bytes(body: &Body) -> Bytes {
    let (mut volumes, mut targets) = (0, 0);
    for task in &body.tasks {
        let Work::Load(load) = &task.work else {
            continue;
        };
        let samples = load.target.extent[0];
        if samples == 0 {
            continue;
        }
        let element = match load.item {
            Item::Sample => body.buffer(load.target.buffer).dtype.size(),
            Item::Target => size_of::<f32>(),
        };
        let bytes = load.target.volume() / samples * element;
        let at_once = at_once(bytes);
        let pieces = samples.div_ceil(at_once).min(BUFFERS_MAX);
        // Of a piece of several samples the last one is read apart.
        let apart = if at_once > 1 { bytes } else { 0 };
        let held = pieces * at_once.min(samples) * bytes + apart;
        match load.item {
            Item::Sample => volumes = held.max(volumes),
            Item::Target => targets = held.max(targets),
        }
    }
    Bytes((volumes + targets) as u64)
}
