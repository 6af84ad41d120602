//! What is under way on the network at once, and how it shares links and adapters.
//!
//! A flow is a collective, or what a rank receives in an exchange. It uses parts of resources: the links of
//! its ranks and the adapters of their nodes, in each direction. Where flows ask for more of a resource than
//! there is, they share it max-min fairly: each gets the same part unless it asks for less, or another
//! resource holds it up more.
//!
//! Source: Bertsekas and Gallager, Data Networks (1992), section 6.5.2, progressive filling.

use super::engine::Instance;
use std::collections::HashMap;

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

/// The rate of each flow under max-min fair sharing, at most 1.
fn rates(flows: &[&[Load]]) -> Vec<f64> {
    let mut users: HashMap<Resource, Vec<(usize, f64)>> = HashMap::new();
    for (at, loads) in flows.iter().enumerate() {
        for load in *loads {
            users
                .entry(load.resource)
                .or_default()
                .push((at, load.part));
        }
    }
    let demand = |users: &[(usize, f64)]| users.iter().map(|user| user.1).sum::<f64>();
    users.retain(|_, users| demand(users) > FULL);
    let mut rates: Vec<Option<f64>> = vec![None; flows.len()];
    // What a flow asks for most, by which its share of a resource is counted.
    let most = |at: usize| flows[at].iter().map(|load| load.part).fold(0.0, f64::max);
    loop {
        let tightest = users
            .iter()
            .filter_map(|(&resource, users)| Some((level(users, &rates, &most)?, resource)))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let Some((level, resource)) = tightest else {
            return rates.into_iter().map(|rate| rate.unwrap_or(1.0)).collect();
        };
        for &(at, _) in &users[&resource] {
            rates[at].get_or_insert_with(|| (level / most(at)).min(1.0));
        }
    }
}

/// The share at which the flows without a rate use up what those with one leave of a resource; none where
/// all have their rate, or can go at full speed.
fn level(
    users: &[(usize, f64)],
    rates: &[Option<f64>],
    most: &impl Fn(usize) -> f64,
) -> Option<f64> {
    let mut free = 1.0;
    let mut open = Vec::new();
    for &(at, part) in users {
        match rates[at] {
            Some(rate) => free -= rate * part,
            None => open.push((most(at), part)),
        }
    }
    open.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Flows that ask for little get all of it; the others share what is left by the level.
    let mut slope: f64 = open.iter().map(|(most, part)| part / most).sum();
    let mut free = f64::max(free, 1e-9);
    for (most, part) in open {
        let level = free / slope;
        if level < most {
            return Some(level);
        }
        free -= part;
        slope -= part / most;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(resource: Resource, part: f64) -> Load {
        Load { resource, part }
    }

    fn close(flows: &[&[Load]], expected: &[f64]) {
        let found = rates(flows);
        let is_close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
        assert!(found.iter().zip(expected).all(is_close), "{found:?}");
    }

    #[test]
    fn equal_flows_share_evenly_and_small_ones_are_not_held_up() {
        close(&[&[load(0, 1.0)], &[load(0, 1.0)]], &[0.5, 0.5]);
        close(&[&[load(0, 1.0)], &[load(1, 1.0)]], &[1.0, 1.0]);
        // Of 1, one flow asks for 0.2 and gets it; the others get 0.4 each.
        let flows: [&[Load]; 3] = [&[load(0, 0.2)], &[load(0, 1.0)], &[load(0, 0.8)]];
        close(&flows, &[1.0, 0.4, 0.5]);
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
