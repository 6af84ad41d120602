//! Matching of sends and receives.

use crate::{Case, Fault, same_elements};
use partita_program::{Exchange, Receive, Send, View, Work};
use partita_space::{Coord, Offset, Rank};
use std::collections::HashMap;

/// For each class, the task of each exchange by its sequence; the first where one comes twice.
pub(crate) fn exchanges(case: &Case<'_>) -> Vec<HashMap<u32, usize>> {
    case.bodies()
        .map(|(class, _)| {
            let mut tasks = HashMap::new();
            for (id, exchange) in exchanges_of(case, class) {
                tasks.entry(exchange.sequence).or_insert(id);
            }
            tasks
        })
        .collect()
}

/// Exchanges of a body with their tasks.
pub(crate) fn exchanges_of<'p>(
    case: &Case<'p>,
    class: usize,
) -> impl Iterator<Item = (usize, &'p Exchange)> + use<'p> {
    let tasks = case.program.bodies[class].tasks.iter().enumerate();
    tasks.filter_map(|(id, task)| match &task.work {
        Work::Exchange(exchange) => Some((id, exchange)),
        Work::Compute { .. } | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    })
}

/// The messages of all exchanges, sorted by peer and part for binary search.
pub(crate) struct Exchanges {
    /// For each class, the task of each exchange by its sequence; the first where one comes twice.
    tasks: Vec<HashMap<u32, usize>>,
    /// For each class and task, sends and receives by peer and part; those of one key stay in their order.
    sorted: Vec<HashMap<usize, [Vec<u32>; 2]>>,
}

impl Exchanges {
    pub fn of(case: &Case<'_>) -> Self {
        let by = |count: usize, key: &dyn Fn(usize) -> (Offset, u32)| {
            let mut order: Vec<u32> = (0..count as u32).collect();
            order.sort_by_key(|&at| key(at as usize));
            order
        };
        let sorted = case.bodies().map(|(class, _)| {
            let all = exchanges_of(case, class).map(
                |(
                    id,
                    Exchange {
                        sends, receives, ..
                    },
                )| {
                    let sends = by(sends.len(), &|at| (sends[at].to, sends[at].part));
                    let receives = by(receives.len(), &|at| (receives[at].from, receives[at].part));
                    (id, [sends, receives])
                },
            );
            all.collect()
        });
        Self {
            tasks: exchanges(case),
            sorted: sorted.collect(),
        }
    }
}

/// The first of sorted messages with this key.
fn first_of<'m, M>(
    messages: &'m [M],
    order: &[u32],
    key: (Offset, u32),
    of: impl Fn(&M) -> (Offset, u32),
) -> Option<&'m M> {
    let at = order.partition_point(|&at| of(&messages[at as usize]) < key);
    let found = order.get(at).map(|&at| &messages[at as usize]);
    found.filter(|message| of(message) == key)
}

/// A message between a rank of a class and a peer.
pub(crate) struct Message {
    /// From the rank to the peer.
    pub offset: Offset,
    /// At the rank.
    pub view: View,
    /// At the peer, with its class, where there is a counterpart.
    pub other: Option<(usize, View)>,
}

/// Messages out of and into a class, each to all classes that its ranks have as peers.
pub(crate) fn messages(case: &Case<'_>, exchanges: &Exchanges, class: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    for (id, exchange) in exchanges_of(case, class) {
        let at = At {
            case,
            exchanges,
            class,
            id,
            sequence: exchange.sequence,
        };
        let mut found = |offset: Offset, view: View, other: &dyn Fn(Rank) -> Option<View>| {
            let ranks = case.ranks_beside(class, offset).iter();
            messages.extend(ranks.map(|&rank| {
                Message {
                    offset,
                    view,
                    other: case
                        .program
                        .mesh
                        .neighbor(rank, offset)
                        .and_then(|peer| Some((case.class_of(peer), other(peer)?))),
                }
            }));
        };
        for send in &exchange.sends {
            let other = |peer| at.receive_of(send, peer).map(|receive| receive.view);
            found(send.to, send.view, &other);
        }
        for receive in &exchange.receives {
            let other = |peer| at.send_of(receive, peer).map(|send| send.view);
            found(receive.from, receive.view, &other);
        }
    }
    messages
}

/// Each message of a class has its counterpart at all classes of peers, of the same part, length, type and global
/// region.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let exchanges = Exchanges::of(case);
    for (class, _) in case.checked() {
        for (id, exchange) in exchanges_of(case, class) {
            let first = exchanges.tasks[class][&exchange.sequence];
            if first != id {
                faults.push(Fault::SequenceTwice {
                    site: case.site(class, id),
                    sequence: exchange.sequence,
                    first,
                });
            }
            let at = At {
                case,
                exchanges: &exchanges,
                class,
                id,
                sequence: exchange.sequence,
            };
            at.duplicates(exchange, faults);
            for send in &exchange.sends {
                let ranks = case.ranks_beside(class, send.to).iter();
                faults.extend(ranks.filter_map(|&rank| at.send(send, rank)));
            }
            for receive in &exchange.receives {
                let ranks = case.ranks_beside(class, receive.from).iter();
                faults.extend(ranks.filter_map(|&rank| at.receive(receive, rank)));
            }
        }
    }
}

/// An exchange of a class.
struct At<'a, 'p> {
    case: &'a Case<'p>,
    exchanges: &'a Exchanges,
    class: usize,
    id: usize,
    sequence: u32,
}

impl<'p> At<'_, 'p> {
    fn duplicates(&self, exchange: &Exchange, faults: &mut Vec<Fault>) {
        let mut sends: Vec<_> = exchange.sends.iter().map(|m| (m.to, m.part)).collect();
        let mut receives: Vec<_> = exchange.receives.iter().map(|m| (m.from, m.part)).collect();
        for (direction, messages) in [("to", &mut sends), ("from", &mut receives)] {
            messages.sort_unstable();
            for pair in messages.windows(2).filter(|pair| pair[0] == pair[1]) {
                let (offset, part) = pair[0];
                faults.push(Fault::PartTwice {
                    site: self.case.site(self.class, self.id),
                    direction,
                    offset,
                    part,
                });
            }
        }
    }

    /// The exchange of the same sequence on another rank, with its task.
    fn exchange_of(&self, peer: Rank) -> Option<(usize, &'p Exchange)> {
        let class = self.case.class_of(peer);
        let &task = self.exchanges.tasks[class].get(&self.sequence)?;
        match &self.case.program.bodies[class].tasks[task].work {
            Work::Exchange(exchange) => Some((task, exchange)),
            Work::Compute { .. } | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
        }
    }

    fn receive_of(&self, send: &Send, peer: Rank) -> Option<&'p Receive> {
        let (task, exchange) = self.exchange_of(peer)?;
        let [_, order] = &self.exchanges.sorted[self.case.class_of(peer)][&task];
        let key = (send.to.reversed(), send.part);
        first_of(&exchange.receives, order, key, |receive| {
            (receive.from, receive.part)
        })
    }

    fn send_of(&self, receive: &Receive, peer: Rank) -> Option<&'p Send> {
        let (task, exchange) = self.exchange_of(peer)?;
        let [order, _] = &self.exchanges.sorted[self.case.class_of(peer)][&task];
        let key = (receive.from.reversed(), receive.part);
        first_of(&exchange.sends, order, key, |send| (send.to, send.part))
    }

    fn send(&self, send: &Send, rank: Rank) -> Option<Fault> {
        let case = self.case;
        let site = || case.site_at(self.class, rank, self.id);
        let Some(peer) = case.program.mesh.neighbor(rank, send.to) else {
            return Some(Fault::NoPeer {
                site: site(),
                offset: send.to,
            });
        };
        let Some(receive) = self.receive_of(send, peer) else {
            return Some(Fault::SendUnmatched {
                site: site(),
                sequence: self.sequence,
                part: send.part,
                peer,
                spot: case.spot(self.class, &send.view),
            });
        };
        let reason = self.difference(send, [rank, peer], &receive.view)?;
        Some(Fault::MessageDiffers {
            site: site(),
            spot: case.spot(self.class, &send.view),
            part: send.part,
            peer,
            target: case.spot(case.class_of(peer), &receive.view),
            reason,
        })
    }

    fn receive(&self, receive: &Receive, rank: Rank) -> Option<Fault> {
        let case = self.case;
        let site = || case.site_at(self.class, rank, self.id);
        let Some(peer) = case.program.mesh.neighbor(rank, receive.from) else {
            return Some(Fault::NoPeer {
                site: site(),
                offset: receive.from,
            });
        };
        self.send_of(receive, peer)
            .is_none()
            .then(|| Fault::ReceiveUnmatched {
                site: site(),
                sequence: self.sequence,
                part: receive.part,
                peer,
                spot: case.spot(self.class, &receive.view),
            })
    }

    /// The difference between a message and its receive buffer.
    fn difference(&self, send: &Send, [rank, peer]: [Rank; 2], target: &View) -> Option<String> {
        let case = self.case;
        let there = case.class_of(peer);
        let dtype =
            |class: usize, view: &View| case.program.bodies[class].buffer(view.buffer).dtype;
        let (mine, theirs) = (dtype(self.class, &send.view), dtype(there, target));
        if mine != theirs {
            return Some(format!("{mine:?} against {theirs:?}"));
        }
        let (mine, theirs) = (send.view.volume(), target.volume());
        if mine != theirs {
            return Some(format!("{mine} elements against {theirs}"));
        }
        let [coord, other_coord] = [rank, peer].map(|rank| case.program.mesh.coord(rank));
        region_difference(
            case,
            (self.class, &send.view),
            (there, target),
            (&coord, &other_coord),
        )
    }
}

/// The difference between the global regions of two views, where both buffers hold tensors. Regions without an
/// element do not differ.
pub(crate) fn region_difference(
    case: &Case<'_>,
    (class, view): (usize, &View),
    (other_class, other): (usize, &View),
    (coord, other_coord): (&Coord, &Coord),
) -> Option<String> {
    let (mine, theirs) = (case.tensor(class, view)?, case.tensor(other_class, other)?);
    if view.is_empty() && other.is_empty() {
        return None;
    }
    if mine.id != theirs.id {
        return Some(format!("tensor {} against {}", mine.id, theirs.id));
    }
    let (shape, other_shape) = (mine.distribution.shape, theirs.distribution.shape);
    if shape != other_shape {
        return Some(format!("a tensor of {shape:?} against {other_shape:?}"));
    }
    let region = case.global(class, view, coord)?;
    let other = case.global(other_class, other, other_coord)?;
    let same = same_elements(&region, &other, &shape);
    (!same).then(|| format!("global region {region} against {other}"))
}
