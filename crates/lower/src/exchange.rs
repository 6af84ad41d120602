//! Halo exchange, with periodic and zero padding, and its adjoint.

use crate::body::{Builder, TensorBuffer};
use crate::geometry::{Geometry, Transfer};
use partita_program::{Exchange, Kernel, Phase, Receive, Send, View, Work};
use partita_space::{Offset, Region};

/// Fills the halo of a buffer from its owners.
///
/// Example: width split in two, kernel 3: each rank sends its border column and receives the other's.
pub(crate) fn gather_halo(
    builder: &mut Builder<'_>,
    layer: &str,
    phase: Phase,
    held: &TensorBuffer,
    geometry: &Geometry,
) {
    move_halo(builder, (layer, phase), held, geometry, false);
}

/// The adjoint (reverse halo exchange): adds the halo to the regions of its owners.
pub(crate) fn scatter_halo(
    builder: &mut Builder<'_>,
    layer: &str,
    phase: Phase,
    held: &TensorBuffer,
    geometry: &Geometry,
) {
    move_halo(builder, (layer, phase), held, geometry, true);
}

/// From owners to halos, or back if `adjoint`.
fn move_halo(
    builder: &mut Builder<'_>,
    (layer, phase): (&str, Phase),
    held: &TensorBuffer,
    geometry: &Geometry,
    adjoint: bool,
) {
    let sequence = builder.next_sequence();
    let coord = builder.coord;
    let (wraps, incoming): (Vec<_>, Vec<_>) = geometry
        .incoming(&coord)
        .into_iter()
        .partition(|transfer| transfer.peer == coord);
    for wrap in &wraps {
        let (owned, halo) = (held.view(&wrap.from), held.view(&wrap.at));
        let (source, target) = if adjoint {
            (halo, owned)
        } else {
            (owned, halo)
        };
        let copy = Kernel::Copy {
            source,
            target,
            accumulate: adjoint,
        };
        builder.kernel(layer, phase, copy);
    }
    let owned = messages(builder, held, &geometry.outgoing(&coord), |of| &of.from);
    let halos = messages(builder, held, &incoming, |of| &of.at);
    let (sent, received) = if adjoint {
        (halos, owned)
    } else {
        (owned, halos)
    };
    if sent.is_empty() && received.is_empty() {
        return;
    }
    let sends = sent
        .into_iter()
        .map(|(to, part, view)| Send { to, part, view });
    let receives = received.into_iter().map(|(from, part, view)| Receive {
        from,
        part,
        view,
        accumulate: adjoint,
    });
    let exchange = Exchange {
        sequence,
        sends: sends.collect(),
        receives: receives.collect(),
    };
    builder.push(layer, phase, Work::Exchange(exchange));
}

/// For each transfer the peer, the index of the message between the two, and one of its two views.
fn messages(
    builder: &Builder<'_>,
    held: &TensorBuffer,
    transfers: &[Transfer],
    end: impl Fn(&Transfer) -> &Region,
) -> Vec<(Offset, u32, View)> {
    let mut parts = Parts::default();
    let message = |transfer: &Transfer| {
        let peer = builder.offset_to(&transfer.peer);
        (peer, parts.next(peer), held.view(end(transfer)))
    };
    transfers.iter().map(message).collect()
}

/// Sets the part of `halo` outside `inside` to zero.
pub(crate) fn zero_outside(
    builder: &mut Builder<'_>,
    layer: &str,
    phase: Phase,
    held: &TensorBuffer,
    halo: &Region,
    inside: &Region,
) {
    for piece in halo.minus(inside) {
        builder.fill(layer, phase, held.view(&piece), 0.0);
    }
}

/// Numbers the messages of an exchange by peer.
#[derive(Default)]
struct Parts(Vec<(Offset, u32)>);

impl Parts {
    fn next(&mut self, peer: Offset) -> u32 {
        match self.0.iter_mut().find(|(known, _)| *known == peer) {
            Some((_, next)) => {
                *next += 1;
                *next - 1
            }
            None => {
                self.0.push((peer, 1));
                0
            }
        }
    }
}
