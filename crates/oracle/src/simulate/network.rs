//! What is under way on the network at once, and how it shares links and adapters.
//!
//! A flow is a collective, or what a rank receives in an exchange. It uses parts of resources: the links of
//! its ranks and the adapters of their nodes, in each direction. Where flows ask for more of a resource than
//! there is, they share it max-min fairly by their rates: all are slowed by the same factor, unless another
//! resource slows one more. So flows of equal ranks can stand as one flow with their sum of parts.
//!
//! Source: Bertsekas and Gallager, Data Networks (1992), section 6.5.2, progressive filling.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

/// A task of a participant in a step: `base[participant] + step * tasks + task`.
pub(super) type Instance = usize;

/// A part of the network, as an index.
pub(super) type Resource = u32;

/// What a flow uses of a resource at full speed, as a part of that resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    pub resource: Resource,
    pub part: f64,
}

/// Demand above this is shared out; below, it is rounding.
const FULL: f64 = 1.0 + 1e-9;
/// Parts of a resource below this are rounding.
const ROUNDING: f64 = 1e-12;

struct Flow<'s> {
    loads: &'s [Load],
    /// What completes when the flow ends.
    instances: Vec<Instance>,
    /// Seconds at full speed that were left at `since`.
    left: f64,
    since: f64,
    /// Seconds at full speed per second.
    rate: f64,
}

/// The flows under way.
#[derive(Default)]
pub(super) struct Network<'s> {
    flows: Vec<Flow<'s>>,
    /// Index of the flow of each instance that is under way.
    flow_of: HashMap<Instance, usize>,
    /// By resource, the sum of parts that the flows ask for.
    demand: HashMap<Resource, f64>,
    /// Whether rates are to be worked out anew.
    is_stale: bool,
}

/// Instances that now end at another time.
pub(super) struct Moved {
    pub instance: Instance,
    pub end: f64,
}

impl<'s> Network<'s> {
    /// A flow begins that takes `seconds` at full speed.
    pub fn begin(&mut self, loads: &'s [Load], instances: Vec<Instance>, now: f64, seconds: f64) {
        if loads.is_empty() || seconds <= 0.0 {
            return;
        }
        for load in loads {
            let demand = self.demand.entry(load.resource).or_insert(0.0);
            *demand += load.part;
            self.is_stale |= *demand > FULL;
        }
        for &instance in &instances {
            self.flow_of.insert(instance, self.flows.len());
        }
        self.flows.push(Flow {
            loads,
            instances,
            left: seconds,
            since: now,
            rate: 1.0,
        });
    }

    /// An instance has ended, and the flow that it is part of; nothing where it is part of none.
    pub fn end(&mut self, instance: Instance) {
        let Some(&at) = self.flow_of.get(&instance) else {
            return;
        };
        let ended = self.flows.swap_remove(at);
        for instance in &ended.instances {
            self.flow_of.remove(instance);
        }
        if let Some(moved) = self.flows.get(at) {
            for &instance in &moved.instances {
                self.flow_of.insert(instance, at);
            }
        }
        for load in ended.loads {
            let demand = self.demand.entry(load.resource).or_insert(0.0);
            // What shared a resource with the ended flow may go on faster.
            self.is_stale |= *demand > FULL;
            *demand -= load.part;
        }
        if self.flows.is_empty() {
            // Rounding does not add up.
            self.demand.clear();
        }
    }

    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Shares out the network among all flows, and lists what ends at another time by that.
    pub fn share_out(&mut self, now: f64) -> Vec<Moved> {
        self.is_stale = false;
        let loads: Vec<&[Load]> = self.flows.iter().map(|flow| flow.loads).collect();
        let mut moved = Vec::new();
        for (flow, rate) in self.flows.iter_mut().zip(rates(&loads)) {
            if (rate - flow.rate).abs() <= 1e-12 {
                continue;
            }
            flow.left = (flow.left - (now - flow.since) * flow.rate).max(0.0);
            (flow.since, flow.rate) = (now, rate);
            let end = now + flow.left / rate;
            let instances = flow.instances.iter();
            moved.extend(instances.map(|&instance| Moved { instance, end }));
        }
        moved
    }
}

/// The rate of each flow, at most 1: all go at one rate until a resource is full, whose flows stay at it, while
/// the others go on faster.
fn rates(flows: &[&[Load]]) -> Vec<f64> {
    let mut demand: BTreeMap<Resource, f64> = BTreeMap::new();
    for load in flows.iter().copied().flatten() {
        *demand.entry(load.resource).or_insert(0.0) += load.part;
    }
    let full = demand.into_iter().filter(|&(_, demand)| demand > FULL);
    let (index_of, mut shared): (HashMap<Resource, usize>, Vec<Shared>) = full
        .enumerate()
        .map(|(index, (resource, open))| ((resource, index), Shared::new(open)))
        .unzip();
    for (at, loads) in flows.iter().enumerate() {
        for load in *loads {
            if let Some(&index) = index_of.get(&load.resource) {
                shared[index].users.push(at);
            }
        }
    }
    let mut rates: Vec<Option<f64>> = vec![None; flows.len()];
    // The bits of positive numbers are in their order. Levels rise as flows get rates.
    let levels = shared.iter().enumerate();
    let levels = levels.filter_map(|(index, one)| Some(Reverse((one.level()?.to_bits(), index))));
    let mut levels: BinaryHeap<Reverse<(u64, usize)>> = levels.collect();
    while let Some(Reverse((bits, index))) = levels.pop() {
        let Some(level) = shared[index].level() else {
            continue;
        };
        if level.to_bits() != bits {
            levels.push(Reverse((level.to_bits(), index)));
            continue;
        }
        for at in std::mem::take(&mut shared[index].users) {
            if rates[at].is_some() {
                continue;
            }
            rates[at] = Some(level);
            for load in flows[at] {
                if let Some(&index) = index_of.get(&load.resource) {
                    shared[index].give(level, load.part);
                }
            }
        }
    }
    rates.into_iter().map(|rate| rate.unwrap_or(1.0)).collect()
}

/// A resource of which flows ask for more than there is.
struct Shared {
    /// The flows that use it, until one rate is given to all of them.
    users: Vec<usize>,
    /// What flows with a rate leave of it.
    free: f64,
    /// What the flows without a rate ask for.
    open: f64,
}

impl Shared {
    fn new(open: f64) -> Self {
        Self {
            users: Vec::new(),
            free: 1.0,
            open,
        }
    }

    /// A flow that uses a part of it gets a rate.
    fn give(&mut self, rate: f64, part: f64) {
        self.free -= rate * part;
        self.open -= part;
    }

    /// The rate at which the flows without one use up what is free; none where all have one, or can go at full speed.
    fn level(&self) -> Option<f64> {
        let is_open = self.open > ROUNDING && !self.users.is_empty();
        (is_open && self.free < self.open).then(|| f64::max(self.free, 1e-9) / self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::random::SplitMix;

    fn load(resource: Resource, part: f64) -> Load {
        Load { resource, part }
    }

    fn close(flows: &[&[Load]], expected: &[f64]) {
        let found = rates(flows);
        let is_close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
        assert!(found.iter().zip(expected).all(is_close), "{found:?}");
    }

    #[test]
    fn flows_are_slowed_by_the_same_factor() {
        close(&[&[load(0, 1.0)], &[load(0, 1.0)]], &[0.5, 0.5]);
        close(&[&[load(0, 1.0)], &[load(1, 1.0)]], &[1.0, 1.0]);
        let flows: [&[Load]; 3] = [&[load(0, 0.2)], &[load(0, 1.0)], &[load(0, 0.8)]];
        close(&flows, &[0.5, 0.5, 0.5]);
        // Three equal flows as one.
        let flows: [&[Load]; 2] = [&[load(0, 0.6)], &[load(0, 1.0)]];
        close(&flows, &[1.0 / 1.6, 1.0 / 1.6]);
    }

    #[test]
    fn what_a_flow_cannot_use_elsewhere_is_left_to_others() {
        // Bertsekas and Gallager, figure 6.11: three flows on the first link, one of which also shares the
        // second with a fourth.
        let flows: [&[Load]; 4] = [
            &[load(0, 1.0)],
            &[load(0, 1.0)],
            &[load(0, 1.0), load(1, 1.0)],
            &[load(1, 1.0)],
        ];
        let third = 1.0 / 3.0;
        close(&flows, &[third, third, third, 2.0 * third]);
    }

    /// Whether rates are max-min fair: each flow below full speed uses a full resource, on which no other is faster.
    fn is_fair(flows: &[&[Load]], rates: &[f64]) -> bool {
        let used = |resource: Resource| -> f64 {
            let all = flows.iter().zip(rates);
            let of = |(loads, rate): (&&[Load], &f64)| {
                let own = loads.iter().filter(|load| load.resource == resource);
                own.map(|load| rate * load.part).sum::<f64>()
            };
            all.map(of).sum()
        };
        let uses = |flow: &[Load], resource| flow.iter().any(|load| load.resource == resource);
        let is_bottleneck = |resource: Resource, rate: f64| {
            let users = flows
                .iter()
                .zip(rates)
                .filter(|(flow, _)| uses(flow, resource));
            used(resource) > 1.0 - 1e-6
                && users
                    .map(|(_, other)| other)
                    .all(|&other| other <= rate + 1e-9)
        };
        let is_bounded = |(flow, &rate): (&&[Load], &f64)| {
            let within = flow.iter().all(|load| used(load.resource) <= 1.0 + 1e-6);
            within && (rate >= 1.0 || flow.iter().any(|load| is_bottleneck(load.resource, rate)))
        };
        flows.iter().zip(rates).all(is_bounded)
    }

    #[test]
    fn random_flows_share_fairly() {
        let mut draw = SplitMix(11);
        for case in 0..300 {
            let resources = draw.between(1, 12);
            let flow = |draw: &mut SplitMix| -> Vec<Load> {
                let count = draw.between(1, 5);
                let one = |_| {
                    load(
                        draw.between(0, resources - 1) as Resource,
                        draw.between(1, 8) as f64 / 8.0,
                    )
                };
                let mut loads: Vec<Load> = (0..count).map(one).collect();
                loads.sort_by_key(|load| load.resource);
                loads.dedup_by_key(|load| load.resource);
                loads
            };
            let flows: Vec<Vec<Load>> = (0..draw.between(1, 20)).map(|_| flow(&mut draw)).collect();
            let flows: Vec<&[Load]> = flows.iter().map(Vec::as_slice).collect();
            let found = rates(&flows);
            assert!(is_fair(&flows, &found), "case {case}: {flows:?} {found:?}");
        }
    }

    #[test]
    fn ends_move_when_flows_come_and_go() {
        let whole = [load(0, 1.0)];
        let mut network = Network::default();
        network.begin(&whole, vec![7], 0.0, 4.0);
        assert!(!network.is_stale());
        network.begin(&whole, vec![8, 9], 1.0, 4.0);
        let moved = network.share_out(1.0);
        let ends: Vec<(Instance, f64)> = moved.iter().map(|one| (one.instance, one.end)).collect();
        assert_eq!(ends, [(7, 7.0), (8, 9.0), (9, 9.0)]);
        network.end(7);
        let moved = network.share_out(7.0);
        // At 7, one of four seconds at full speed is left.
        assert_eq!(moved[0].end, 8.0);
        network.end(8);
        assert!(network.flows.is_empty() && network.flow_of.is_empty());
    }
}
