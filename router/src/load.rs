//! How much a cell carries, as its pods report it, and how much of what is left this router may take. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_protocol::HealthLine;

/// What the pods of one cell last said of their load.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// From the Cell's spec; it goes before what pods say.
    written: Option<u32>,
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
    pub(crate) fn set_capacity(&mut self, written: Option<u32>) {
        self.written = written;
    }

    /// Takes a line of a pod's stream, and says how many transactions this router may have under way in the cell when
    /// it has `mine` now.
    pub(crate) fn hear(&mut self, pod: &Arc<str>, line: &HealthLine, mine: u32) -> u32 {
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

    pub(crate) fn forget(&mut self, pod: &str) {
        self.pods.remove(pod);
    }

    /// What the orchestrator last said, for people.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Mine, and my part of what nobody has: the routers that stream from the cell share it evenly.
    fn allowance(&self, mine: u32) -> u32 {
        let Some(capacity) = self.written.or(self.said) else { return u32::MAX };
        let in_flight: u32 = self.pods.values().map(|pod| pod.in_flight).sum();
        let routers = self.pods.values().map(|pod| pod.routers).max().unwrap_or(1).max(1);
        mine.saturating_add(capacity.saturating_sub(in_flight).div_ceil(routers)).min(capacity)
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::Beat;

    use super::*;

    fn check(written: Option<u32>, pods: &[(u32, u32)], mine: u32, expected: u32) {
        let mut load = Load::default();
        load.set_capacity(written);
        let mut allowance = 0;
        for (place, (in_flight, routers)) in pods.iter().enumerate() {
            let beat = Beat { in_flight: *in_flight, routers: *routers, ..Beat::default() };
            allowance = load.hear(&place.to_string().into(), &HealthLine::Beat(beat), mine);
        }
        assert_eq!(allowance, expected);
    }

    #[test]
    fn what_is_left_is_shared_by_the_routers() {
        check(Some(100), &[(20, 2), (20, 2)], 10, 40);
        check(Some(100), &[(0, 1)], 0, 100);
        // Full: what I have I keep, and nothing more.
        check(Some(100), &[(60, 2), (50, 2)], 30, 30);
    }

    #[test]
    fn without_a_capacity_there_is_no_limit() {
        check(None, &[(1_000, 1)], 10, u32::MAX);
    }
}
