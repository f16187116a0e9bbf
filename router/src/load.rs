//! How much a cell carries, as its pods report it, and how much of what is left this router may take. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_crds::cell::Capacity;
use bulkhead_protocol::HealthLine;

use crate::live::Allowance;

/// What the pods of one cell last said of their load.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// From the Cell's spec; it goes before what pods say.
    written: Option<Capacity>,
    /// From the pods.
    said: Option<u32>,
    pods: HashMap<Arc<str>, PodLoad>,
    message: String,
}

#[derive(Clone, Copy, Debug, Default)]
struct PodLoad {
    in_flight: u32,
    routers: u32,
}

impl Load {
    pub(crate) fn set_capacity(&mut self, written: Option<Capacity>) {
        self.written = written;
    }

    /// Takes a line of a pod's stream, and says how much of the cell this router may use when it has `mine` under way
    /// there now.
    pub(crate) fn hear(&mut self, pod: &Arc<str>, line: &HealthLine, mine: u32) -> Allowance {
        let load = match line {
            HealthLine::Verdict(verdict) => {
                self.said = verdict.capacity;
                self.message.clone_from(&verdict.message);
                PodLoad { in_flight: verdict.in_flight, routers: verdict.routers }
            }
            HealthLine::Beat(beat) => PodLoad { in_flight: beat.in_flight, routers: beat.routers },
        };
        self.pods.insert(Arc::clone(pod), load);
        self.allowance(mine)
    }

    /// Forgets pods that are not heard any more: what they had under way may be over.
    pub(crate) fn retain(&mut self, is_heard: impl Fn(&Arc<str>) -> bool) {
        self.pods.retain(|pod, _| is_heard(pod));
    }

    /// What the orchestrator last said, for people.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Of transactions, mine and my part of what nobody has; of requests, my part: the routers that stream from the cell
    /// share both evenly.
    fn allowance(&self, mine: u32) -> Allowance {
        let routers = self.pods.values().map(|pod| pod.routers).max().unwrap_or(1).max(1);
        let written = self.written.as_ref();
        let in_flight = match written.and_then(|written| written.in_flight).or(self.said) {
            None => u32::MAX,
            Some(capacity) => {
                let taken = self.pods.values().map(|pod| pod.in_flight).fold(0, u32::saturating_add);
                mine.saturating_add(capacity.saturating_sub(taken).div_ceil(routers)).min(capacity)
            }
        };
        let per_second = written.and_then(|written| written.requests_per_second);
        Allowance { in_flight, per_second: per_second.map(|rate| f64::from(rate) / f64::from(routers)) }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::Beat;

    use super::*;

    fn check(written: Option<u32>, pods: &[(u32, u32)], mine: u32, expected: u32) {
        let mut load = Load::default();
        load.set_capacity(
            written.map(|limit| Capacity { in_flight: Some(limit), requests_per_second: Some(30) }),
        );
        let mut allowance = None;
        for (place, (in_flight, routers)) in pods.iter().enumerate() {
            let beat = Beat { in_flight: *in_flight, routers: *routers, ..Beat::default() };
            allowance = Some(load.hear(&place.to_string().into(), &HealthLine::Beat(beat), mine));
        }
        let routers = pods.iter().map(|(_, routers)| f64::from(*routers)).fold(0.0, f64::max);
        let per_second = written.map(|_| 30.0 / routers);
        assert_eq!(allowance, Some(Allowance { in_flight: expected, per_second }));
    }

    #[test]
    fn what_is_left_is_shared_by_the_routers() {
        check(Some(100), &[(20, 2), (20, 2)], 10, 40);
        check(Some(100), &[(0, 1)], 0, 100);
        // Full: what I have I keep, and nothing more.
        check(Some(100), &[(60, 2), (50, 2)], 30, 30);
    }

    #[test]
    fn a_pod_that_is_not_heard_any_more_takes_nothing_and_no_sum_is_too_large() {
        check(Some(100), &[(u32::MAX, 1), (u32::MAX, 1)], 5, 5);
        let mut load = Load::default();
        load.set_capacity(Some(Capacity { in_flight: Some(100), requests_per_second: None }));
        let beat = |in_flight| HealthLine::Beat(Beat { in_flight, routers: 1, ..Beat::default() });
        assert_eq!(load.hear(&"a".into(), &beat(90), 0).in_flight, 10);
        load.retain(|pod| &**pod != "a");
        assert_eq!(load.hear(&"b".into(), &beat(5), 0).in_flight, 95);
    }

    #[test]
    fn without_a_capacity_there_is_no_limit() {
        check(None, &[(1_000, 1)], 10, u32::MAX);
    }
}
