//! Frames: halos from other ranks, wrapped padding, zeros; and their adjoint.

use crate::body::{Builder, Held};
use crate::geometry::{Geometry, Transfer};
use partita_program::{Exchange, Kernel, Phase, Receive, Send, Work};
use partita_space::{Offset, Region};

/// Fills the frame of a buffer with what its owners have.
///
/// Example: width split in two, kernel 3: each rank sends its border column and receives the other's.
pub(crate) fn gather_frame(
    builder: &mut Builder<'_>,
    layer: &str,
    phase: Phase,
    held: &Held,
    geometry: &Geometry,
) {
    let sequence = builder.next_sequence();
    let coord = builder.coord;
    let (incoming, outgoing) = (geometry.incoming(&coord), geometry.outgoing(&coord));
    for wrap in incoming.iter().filter(|transfer| transfer.peer == coord) {
        let (source, target) = (held.view(&wrap.from), held.view(&wrap.at));
        builder.kernel(
            layer,
            phase,
            Kernel::Copy {
                source,
                target,
                accumulate: false,
            },
        );
    }
    let mut parts = Parts::default();
    let sends = outgoing.iter().map(|transfer| {
        let to = offset(builder, transfer);
        Send {
            to,
            part: parts.next(to),
            view: held.view(&transfer.from),
        }
    });
    let sends: Vec<Send> = sends.collect();
    let mut parts = Parts::default();
    let receives = incoming.iter().filter(|transfer| transfer.peer != coord);
    let receives = receives.map(|transfer| {
        let from = offset(builder, transfer);
        let view = held.view(&transfer.at);
        Receive {
            from,
            part: parts.next(from),
            view,
            accumulate: false,
        }
    });
    let receives = receives.collect();
    push(
        builder,
        layer,
        phase,
        Exchange {
            sequence,
            sends,
            receives,
        },
    );
}

/// The adjoint: adds what stands in the frame to what its owners have.
pub(crate) fn scatter_frame(
    builder: &mut Builder<'_>,
    layer: &str,
    phase: Phase,
    held: &Held,
    geometry: &Geometry,
) {
    let sequence = builder.next_sequence();
    let coord = builder.coord;
    let (incoming, outgoing) = (geometry.incoming(&coord), geometry.outgoing(&coord));
    let mut parts = Parts::default();
    let sends = incoming.iter().filter(|transfer| transfer.peer != coord);
    let sends = sends.map(|transfer| {
        let to = offset(builder, transfer);
        Send {
            to,
            part: parts.next(to),
            view: held.view(&transfer.at),
        }
    });
    let sends: Vec<Send> = sends.collect();
    let mut parts = Parts::default();
    let receives = outgoing.iter().map(|transfer| {
        let from = offset(builder, transfer);
        let view = held.view(&transfer.from);
        Receive {
            from,
            part: parts.next(from),
            view,
            accumulate: true,
        }
    });
    let receives = receives.collect();
    for wrap in incoming.iter().filter(|transfer| transfer.peer == coord) {
        let (source, target) = (held.view(&wrap.at), held.view(&wrap.from));
        builder.kernel(
            layer,
            phase,
            Kernel::Copy {
                source,
                target,
                accumulate: true,
            },
        );
    }
    push(
        builder,
        layer,
        phase,
        Exchange {
            sequence,
            sends,
            receives,
        },
    );
}

/// Sets the part of `frame` outside `inside` to zero.
pub(crate) fn zero_outside(
    builder: &mut Builder<'_>,
    layer: &str,
    phase: Phase,
    held: &Held,
    frame: &Region,
    inside: &Region,
) {
    for piece in frame.minus(inside) {
        builder.fill(layer, phase, held.view(&piece), 0.0);
    }
}

fn push(builder: &mut Builder<'_>, layer: &str, phase: Phase, exchange: Exchange) {
    if !(exchange.sends.is_empty() && exchange.receives.is_empty()) {
        builder.push(layer, phase, Work::Exchange(exchange));
    }
}

fn offset(builder: &Builder<'_>, transfer: &Transfer) -> Offset {
    let mut steps = [0; 7];
    for axis in 0..7 {
        steps[axis] = transfer.peer[axis] as i32 - builder.coord[axis] as i32;
    }
    Offset(steps)
}

/// Numbers the messages of an exchange per peer.
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
