//! What is under way on the network at once, and how it shares links and adapters.
//!
//! A flow is a collective, or what a rank receives in an exchange. It uses parts of resources: the links of
//! its ranks and the adapters of their nodes, in each direction. Where flows ask for more of a resource than
//! there is, they share it max-min fairly by their rates: all are slowed by the same factor, unless another
//! resource slows one more. So flows of equal ranks can stand as one flow with their sum of parts.
//!
//! Source: Bertsekas and Gallager, Data Networks (1992), section 6.5.2, progressive filling.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

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
    /// While the network is shared out: the next rate, once it has one.
    next: Option<f64>,
    is_reached: bool,
}

/// A resource, with the flows that use it.
#[derive(Default)]
struct Used {
    /// The sum of parts that the flows ask for.
    demand: f64,
    /// Number and part of each flow.
    flows: Vec<(usize, f64)>,
    /// Whether it was asked for too much before or after a flow came or went since the network was last shared out.
    has_changed: bool,
    /// While the network is shared out.
    is_reached: bool,
    /// What flows with a rate leave of it.
    free: f64,
    /// What flows without a rate ask for; nothing where one rate was given to all that were left.
    open: f64,
}

/// The flows under way.
#[derive(Default)]
pub(super) struct Network<'s> {
    /// By number; none where no flow has the number.
    flows: Vec<Option<Flow<'s>>>,
    unused: Vec<usize>,
    /// Number of the flow of each instance that is under way.
    flow_of: HashMap<Instance, usize>,
    resources: Vec<Used>,
    /// Resources whose flows may get other rates.
    changed: Vec<Resource>,
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
        let at = self.unused.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.flows.len() - 1
        });
        for load in loads {
            let known = self.resources.len().max(load.resource as usize + 1);
            self.resources.resize_with(known, Used::default);
            let used = &mut self.resources[load.resource as usize];
            used.demand += load.part;
            used.flows.push((at, load.part));
            self.note_change(load.resource);
        }
        for &instance in &instances {
            self.flow_of.insert(instance, at);
        }
        self.flows[at] = Some(Flow {
            loads,
            instances,
            left: seconds,
            since: now,
            rate: 1.0,
            next: None,
            is_reached: false,
        });
    }

    /// An instance has ended, and the flow that it is part of; nothing where it is part of none.
    pub fn end(&mut self, instance: Instance) {
        let Some(&at) = self.flow_of.get(&instance) else {
            return;
        };
        let Some(ended) = self.flows[at].take() else {
            return;
        };
        self.unused.push(at);
        for instance in &ended.instances {
            self.flow_of.remove(instance);
        }
        for load in ended.loads {
            // What shared a resource with the ended flow may go on faster.
            self.note_change(load.resource);
            let used = &mut self.resources[load.resource as usize];
            if let Some(own) = used.flows.iter().position(|&(flow, _)| flow == at) {
                used.flows.swap_remove(own);
            }
            used.demand -= load.part;
            if used.flows.is_empty() {
                // Rounding does not add up.
                used.demand = 0.0;
            }
        }
    }

    fn note_change(&mut self, resource: Resource) {
        let used = &mut self.resources[resource as usize];
        if used.demand > FULL && !used.has_changed {
            used.has_changed = true;
            self.changed.push(resource);
        }
    }

    pub fn is_stale(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Shares out the network among all flows, and lists what ends at another time by that.
    ///
    /// Only those get another rate that share a full resource with flows that came or went, or with others that do.
    pub fn share_out(&mut self, now: f64) -> Vec<Moved> {
        let (flows, full) = self.reached();
        self.fill(&full);
        for &resource in &full {
            self.resources[resource as usize].is_reached = false;
        }
        let mut moved = Vec::new();
        for flow in flows {
            let Some(flow) = self.flows[flow].as_mut() else {
                continue;
            };
            flow.is_reached = false;
            let rate = flow.next.take().unwrap_or(1.0);
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

    /// The flows whose rates may change, and the full resources that they use.
    fn reached(&mut self) -> (Vec<usize>, Vec<Resource>) {
        let (mut flows, mut full) = (Vec::new(), Vec::new());
        let mut next = std::mem::take(&mut self.changed);
        for &resource in &next {
            self.resources[resource as usize].has_changed = false;
            self.resources[resource as usize].is_reached = true;
        }
        while let Some(resource) = next.pop() {
            let used = &mut self.resources[resource as usize];
            used.open = used.flows.iter().map(|(_, part)| part).sum();
            used.free = 1.0;
            // One that is no longer full slows nothing.
            used.is_reached = used.open > FULL;
            if used.is_reached {
                full.push(resource);
            }
            let before = flows.len();
            for &(at, _) in &used.flows {
                if let Some(flow) = &mut self.flows[at]
                    && !flow.is_reached
                {
                    flow.is_reached = true;
                    flows.push(at);
                }
            }
            for &at in &flows[before..] {
                for load in self.flows[at].as_ref().map_or(&[][..], |flow| flow.loads) {
                    let other = &mut self.resources[load.resource as usize];
                    if other.demand > FULL && !other.is_reached {
                        other.is_reached = true;
                        next.push(load.resource);
                    }
                }
            }
        }
        (flows, full)
    }

    /// Gives rates of less than 1: all flows go at one rate until a resource is full, whose flows stay at it, while the
    /// others go on faster.
    fn fill(&mut self, full: &[Resource]) {
        // The bits of positive numbers are in their order. Levels rise as flows get rates.
        let levels = full.iter().filter_map(|&resource| {
            let level = self.resources[resource as usize].level()?;
            Some(Reverse((level.to_bits(), resource)))
        });
        let mut levels: BinaryHeap<Reverse<(u64, Resource)>> = levels.collect();
        while let Some(Reverse((bits, resource))) = levels.pop() {
            let Some(level) = self.resources[resource as usize].level() else {
                continue;
            };
            if level.to_bits() != bits {
                levels.push(Reverse((level.to_bits(), resource)));
                continue;
            }
            for index in 0..self.resources[resource as usize].flows.len() {
                let (at, _) = self.resources[resource as usize].flows[index];
                let Some(flow) = self.flows[at].as_mut().filter(|flow| flow.next.is_none()) else {
                    continue;
                };
                flow.next = Some(level);
                for load in flow.loads {
                    self.resources[load.resource as usize].give(level, load.part);
                }
            }
            self.resources[resource as usize].open = 0.0;
        }
    }
}

impl Used {
    /// A flow that uses a part of it gets a rate.
    fn give(&mut self, rate: f64, part: f64) {
        self.free -= rate * part;
        self.open -= part;
    }

    /// The rate at which the flows without one use up what is free; none where all have one, or can go at full speed.
    fn level(&self) -> Option<f64> {
        let is_open = self.open > ROUNDING;
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

    /// The rate of each flow, where all begin at once.
    fn rates(flows: &[&[Load]]) -> Vec<f64> {
        let mut network = Network::default();
        for (at, loads) in flows.iter().enumerate() {
            network.begin(loads, vec![at], 0.0, 1.0);
        }
        network.share_out(0.0);
        let all = network.flows.iter().flatten();
        all.map(|flow| flow.rate).collect()
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

    /// Flows come and go; those that are under way have the rates that they would have if all began at once.
    #[test]
    fn rates_do_not_depend_on_what_was_before() {
        let mut draw = SplitMix(12);
        let (mut moved, mut slowed) = (0, 0);
        for case in 0..100 {
            let flow = |draw: &mut SplitMix| -> Vec<Load> {
                let count = draw.between(1, 3);
                let one = |_| {
                    load(
                        draw.between(0, 19) as Resource,
                        0.125 * draw.between(1, 8) as f64,
                    )
                };
                let mut loads: Vec<Load> = (0..count).map(one).collect();
                loads.sort_by_key(|load| load.resource);
                loads.dedup_by_key(|load| load.resource);
                loads
            };
            let flows: Vec<Vec<Load>> = (0..60).map(|_| flow(&mut draw)).collect();
            let mut network = Network::default();
            let mut under_way = Vec::new();
            for (at, loads) in flows.iter().enumerate() {
                network.begin(loads, vec![at], at as f64, 1e6);
                under_way.push(at);
                while under_way.len() > 12 || draw.between(0, 4) == 0 && !under_way.is_empty() {
                    let ended = under_way.swap_remove(draw.between(0, under_way.len() - 1));
                    network.end(ended);
                }
                if network.is_stale() && draw.between(0, 2) > 0 {
                    moved += network.share_out(at as f64).len();
                }
            }
            network.share_out(60.0);
            let loads: Vec<&[Load]> = under_way.iter().map(|&at| flows[at].as_slice()).collect();
            for (&at, rate) in under_way.iter().zip(rates(&loads)) {
                let number = network.flow_of[&at];
                let found = network.flows[number].as_ref().map_or(0.0, |flow| flow.rate);
                assert!((found - rate).abs() < 1e-9, "case {case}: {found} {rate}");
                slowed += usize::from(rate < 1.0);
            }
        }
        assert!(moved > 1000 && slowed > 100, "{moved} {slowed}");
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
        assert!(network.flows.iter().all(Option::is_none) && network.flow_of.is_empty());
    }
}
