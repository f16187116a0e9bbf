//! What the routers say they serve, all of them together, and what follows from it for one object. Pure; asking them is
//! `poll`'s.

use std::sync::Arc;

use bulkhead_protocol::Serving;

/// The routers of the installation, as they last answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    /// False until every router was asked once: before that nothing can be told.
    pub asked: bool,
    pub routers: Vec<RouterPod>,
}

/// One router pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouterPod {
    pub pod: String,
    /// Name of the Router object that it serves.
    pub router: String,
    /// Its last answer, however old.
    pub serving: Option<Arc<Serving>>,
    /// It did not answer when last asked.
    pub silent: bool,
    /// Silent for longer than its drain time-out, or no longer running: waited for no more.
    pub gone: bool,
    /// Silent because it joins and was never ready, or because it is being deleted. It takes no new traffic, and the status of
    /// an object that it has nothing to do with says nothing of it: else every one would be written for every pod that comes
    /// or goes.
    pub transient: bool,
}

/// An object as it must be in every router's table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// `KIND/NAME` or `KIND/NAMESPACE/NAME`.
    pub key: &'a str,
    pub uid: &'a str,
    pub generation: i64,
}

/// How far an object has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Routers that are waited for.
    pub routers: usize,
    /// Of these, the pods that do not serve it yet.
    pub behind: Vec<String>,
    /// Pods that do not answer: those among `behind` are still waited for, the others are not.
    pub silent: Vec<String>,
}

/// A cell as all routers see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellTraffic {
    /// False until the routers were asked.
    pub known: bool,
    /// Routers that are waited for.
    pub routers: usize,
    /// Of these, the routers that send it new work.
    pub sending: usize,
    /// Routers that hold it for healthy, whatever its weight.
    pub healthy: usize,
    /// Lowest effective weight; None where no router has the cell in its table.
    pub effective_weight: Option<u32>,
    /// Transactions under way, over all routers.
    pub in_flight: u32,
    /// Why it is out, as the first router that has it out says.
    pub out_reason: Option<String>,
    /// Pods that still send it new work, have some under way, or do not answer.
    pub holding: Vec<String>,
}

impl Snapshot {
    fn waited_for<'a>(&'a self, router: Option<&'a str>) -> impl Iterator<Item = &'a RouterPod> {
        self.routers.iter().filter(move |pod| !pod.gone && router.is_none_or(|router| pod.router == router))
    }

    /// Which pods serve that version of an object, or a newer one; of one Router, or of all.
    pub(crate) fn progress(&self, router: Option<&str>, wanted: Wanted<'_>) -> Progress {
        let mut progress = Progress::default();
        for pod in self.waited_for(router).filter(|pod| !pod.transient) {
            progress.routers += 1;
            if pod.silent || !pod.has(wanted) {
                progress.behind.push(pod.pod.clone());
            }
        }
        progress.silent = self
            .routers
            .iter()
            .filter(|pod| pod.silent && !pod.transient && router.is_none_or(|router| pod.router == router))
            .map(|pod| pod.pod.clone())
            .collect();
        progress
    }

    /// Whether every router pod that is waited for, of whatever Router, serves that version of a policy or a newer one, with
    /// nothing under way at an owner by one before: each may be where clients still find a former owner.
    pub(crate) fn has_settled(&self, wanted: Wanted<'_>) -> bool {
        let mut waited_for = self.waited_for(None).peekable();
        let has = |pod: &RouterPod| !pod.silent && pod.has(wanted) && !pod.has_unsettled(wanted.key);
        waited_for.peek().is_some() && waited_for.all(has)
    }

    /// The answering pods of the Router that have a listener of their table not open, each with the reason: `POD: REASON`.
    /// Of that listener, or of any.
    pub(crate) fn closed(&self, router: &str, listener: Option<&str>) -> Vec<String> {
        let answering = self.waited_for(Some(router)).filter(|pod| !pod.silent);
        answering
            .filter_map(|pod| {
                let mut closed = pod.serving.as_ref()?.closed.iter();
                let (_, why) = closed.find(|(name, _)| listener.is_none_or(|listener| *name == listener))?;
                Some(format!("{}: {why}", pod.pod))
            })
            .collect()
    }

    /// The answering pods of the Router that have a listener with certificates that cannot be used, each with the reason:
    /// `POD: REASON`.
    pub(crate) fn certificates(&self, router: &str) -> Vec<String> {
        let answering = self.waited_for(Some(router)).filter(|pod| !pod.silent);
        answering
            .filter_map(|pod| {
                let why = pod.serving.as_ref()?.certificates.values().next()?;
                Some(format!("{}: {why}", pod.pod))
            })
            .collect()
    }

    /// The answering pods that cannot send to the Destination, each with the reason: `POD: REASON`.
    pub(crate) fn unavailable(&self, destination: &str) -> Vec<String> {
        let answering = self.waited_for(None).filter(|pod| !pod.silent);
        let unavailable = answering.filter_map(|pod| {
            let why = pod.serving.as_ref()?.unavailable.get(destination)?;
            Some(format!("{}: {why}", pod.pod))
        });
        unavailable.collect()
    }

    /// How the routers treat a cell. `shift` must be in a router's table before that router counts as not holding it:
    /// without this an answer from before the shift would pass for a drained cell.
    pub(crate) fn cell(&self, name: &str, shift: Option<Wanted<'_>>) -> CellTraffic {
        let mut traffic = CellTraffic { known: self.asked, ..CellTraffic::default() };
        for pod in self.waited_for(None) {
            traffic.routers += 1;
            let current = !pod.silent && shift.is_none_or(|shift| pod.has(shift));
            let seen = pod.serving.as_ref().and_then(|serving| serving.cells.get(name));
            let Some(seen) = seen else {
                // A table without the cell sends it nothing; but a router that never answered has an unknown one.
                if !current || pod.serving.is_none() {
                    traffic.holding.push(pod.pod.clone());
                }
                continue;
            };
            traffic.in_flight = traffic.in_flight.saturating_add(seen.in_flight);
            let lowest = traffic.effective_weight.unwrap_or(u32::MAX).min(seen.effective_weight);
            traffic.effective_weight = Some(lowest);
            traffic.healthy += usize::from(seen.r#in);
            if seen.r#in && seen.effective_weight > 0 {
                traffic.sending += 1;
            } else if traffic.out_reason.is_none() {
                traffic.out_reason = Some(seen.reason.clone());
            }
            if !current || seen.effective_weight > 0 || seen.in_flight > 0 {
                traffic.holding.push(pod.pod.clone());
            }
        }
        traffic
    }
}

impl RouterPod {
    /// Whether its table has that very object in that generation or a newer one.
    fn has(&self, wanted: Wanted<'_>) -> bool {
        self.serving
            .as_ref()
            .and_then(|serving| serving.objects.get(wanted.key))
            .is_some_and(|version| version.uid == wanted.uid && version.generation >= wanted.generation)
    }

    fn has_unsettled(&self, key: &str) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.unsettled.contains(key))
    }
}

impl CellTraffic {
    /// No router sends it anything, and nothing is under way.
    pub(crate) fn is_drained(&self) -> bool {
        self.known && self.holding.is_empty()
    }

    /// Every router gives it that weight.
    pub(crate) fn has_full(&self, weight: u32) -> bool {
        self.known
            && (self.routers == 0
                || weight == 0
                || (self.sending == self.routers && self.effective_weight.is_some_and(|seen| seen >= weight)))
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::serving::{CellServing, ObjectVersion};

    use super::*;
    use crate::fixture;

    const SHIFT: Wanted<'_> = Wanted { key: "TrafficShift/s", uid: "u", generation: 1 };

    fn pod(name: &str, weight: u32, in_flight: u32, has_shift: bool) -> RouterPod {
        let mut serving = Serving::default();
        let cell =
            CellServing { r#in: weight > 0, effective_weight: weight, in_flight, ..CellServing::default() };
        serving.cells.insert("a".to_owned(), cell);
        if has_shift {
            serving
                .objects
                .insert("TrafficShift/s".to_owned(), ObjectVersion { uid: "u".to_owned(), generation: 1 });
        }
        fixture::router_pod(name, serving)
    }

    fn snapshot(routers: Vec<RouterPod>) -> Snapshot {
        Snapshot { asked: true, routers }
    }

    #[test]
    fn drained_means_at_zero_with_nothing_under_way_in_every_router_that_has_the_shift() {
        let check = |routers: Vec<RouterPod>, expected: bool| {
            assert_eq!(
                snapshot(routers.clone()).cell("a", Some(SHIFT)).is_drained(),
                expected,
                "{routers:?}"
            );
        };
        check(vec![pod("1", 0, 0, true), pod("2", 0, 0, true)], true);
        check(vec![pod("1", 0, 0, true), pod("2", 0, 1, true)], false);
        check(vec![pod("1", 0, 0, true), pod("2", 5, 0, true)], false);
        check(vec![pod("1", 0, 0, true), pod("2", 0, 0, false)], false);
        check(vec![], true);
        assert!(!Snapshot::default().cell("a", None).is_drained(), "nobody was asked yet");
    }

    #[test]
    fn a_silent_router_is_waited_for_until_it_is_gone() {
        let mut silent = pod("2", 0, 0, true);
        silent.silent = true;
        assert_eq!(snapshot(vec![silent.clone()]).cell("a", Some(SHIFT)).holding, ["2"]);
        let progress = snapshot(vec![pod("1", 0, 0, true), silent.clone()]).progress(Some("r"), SHIFT);
        assert_eq!((progress.routers, progress.behind.as_slice()), (2, ["2".to_owned()].as_slice()));
        silent.gone = true;
        assert!(snapshot(vec![silent.clone()]).cell("a", Some(SHIFT)).is_drained());
        let progress = snapshot(vec![pod("1", 0, 0, true), silent]).progress(Some("r"), SHIFT);
        assert!(progress.behind.is_empty());
        assert_eq!(progress.silent, ["2"]);
    }

    #[test]
    fn a_router_that_comes_or_goes_is_not_waited_for_but_where_it_may_hold_something() {
        let silent = RouterPod { silent: true, ..pod("2", 0, 0, false) };
        let both =
            |transient| snapshot(vec![pod("1", 0, 0, true), RouterPod { transient, ..silent.clone() }]);
        let progress = both(true).progress(None, SHIFT);
        assert_eq!(progress, Progress { routers: 1, ..Progress::default() });
        assert_eq!(both(false).progress(None, SHIFT).behind, ["2"]);
        for transient in [true, false] {
            assert_eq!(both(transient).cell("a", Some(SHIFT)).holding, ["2"]);
            assert!(!both(transient).has_settled(SHIFT));
        }
    }

    #[test]
    fn an_older_generation_or_another_object_of_that_name_is_behind() {
        let current = snapshot(vec![pod("1", 0, 0, true)]);
        assert!(current.progress(None, SHIFT).behind.is_empty());
        assert_eq!(current.progress(None, Wanted { generation: 2, ..SHIFT }).behind, ["1"]);
        assert_eq!(current.progress(None, Wanted { uid: "other", ..SHIFT }).behind, ["1"]);
        assert_eq!(current.progress(Some("other"), SHIFT).routers, 0);
    }

    #[test]
    fn full_means_the_whole_weight_in_every_router() {
        let check = |weights: &[u32], expected: bool| {
            let routers = weights.iter().map(|weight| pod("x", *weight, 0, true)).collect();
            assert_eq!(snapshot(routers).cell("a", None).has_full(100), expected, "{weights:?}");
        };
        check(&[100, 100], true);
        check(&[100, 50], false);
        check(&[0], false);
        check(&[], true);
    }
}
