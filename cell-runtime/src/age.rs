//! For how long the cell has been ready, as a pure state machine. Routers bring a cell back by steps of this age, so
//! it must not be older than what this pod can vouch for.

/// Times are milliseconds of one monotonic clock; an inherited one may lie before the clock's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Age {
    since: Option<i64>,
    /// Whether the readiness of now is the first of this pod and was never broken. Only such a one may be inherited.
    first: First,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum First {
    #[default]
    NotYet,
    Unbroken,
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// What the services say now.
    Judged { ready: bool },
    /// This process did not run for a while, so that nobody knows what happened meanwhile.
    Stalled,
    /// A peer says that the cell has been ready for so long.
    Inherited { ready_for_ms: u64 },
}

impl Age {
    #[must_use]
    pub(crate) fn step(self, event: Event, now: u64) -> Self {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        match event {
            Event::Judged { ready: true } => match self.since {
                Some(_) => self,
                None if self.first == First::NotYet => Self { since: Some(now), first: First::Unbroken },
                None => Self { since: Some(now), ..self },
            },
            Event::Judged { ready: false } => match self.since {
                Some(_) => Self { since: None, first: First::Broken },
                None => self,
            },
            Event::Stalled => match self.since {
                Some(_) => Self { since: Some(now), first: First::Broken },
                None => self,
            },
            Event::Inherited { ready_for_ms } => match (self.since, self.first) {
                (Some(since), First::Unbroken) => {
                    let inherited = now.saturating_sub(i64::try_from(ready_for_ms).unwrap_or(i64::MAX));
                    Self { since: Some(since.min(inherited)), ..self }
                }
                _ => self,
            },
        }
    }

    /// Milliseconds for which the cell has been ready; `None` when it is not.
    pub(crate) fn ready_for_ms(self, now: u64) -> Option<u64> {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        self.since.map(|since| u64::try_from(now.saturating_sub(since)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Event = Event::Judged { ready: true };
    const NOT_READY: Event = Event::Judged { ready: false };
    const INHERITED: Event = Event::Inherited { ready_for_ms: 60_000 };

    fn check(events: &[(Event, u64)], at: u64, expected: Option<u64>) {
        let age = events.iter().fold(Age::default(), |age, (event, now)| age.step(*event, *now));
        assert_eq!(age.ready_for_ms(at), expected, "{events:?}");
    }

    #[test]
    fn counts_from_the_change_to_ready() {
        check(&[], 5, None);
        check(&[(READY, 10), (READY, 20)], 110, Some(100));
        check(&[(READY, 10), (NOT_READY, 20)], 30, None);
        check(&[(READY, 10), (NOT_READY, 20), (READY, 50)], 60, Some(10));
    }

    #[test]
    fn a_new_pod_inherits_from_its_peers() {
        check(&[(READY, 10), (INHERITED, 20)], 30, Some(60_010));
        check(&[(READY, 100_000), (Event::Inherited { ready_for_ms: 5 }, 100_100)], 100_200, Some(200));
    }

    #[test]
    fn what_this_pod_saw_itself_outweighs_a_peer() {
        check(&[(READY, 10), (NOT_READY, 20), (READY, 30), (INHERITED, 40)], 50, Some(20));
        check(&[(INHERITED, 5)], 50, None);
    }

    #[test]
    fn a_stall_starts_the_age_over_and_cannot_be_inherited_away() {
        check(&[(READY, 10), (Event::Stalled, 900)], 1_000, Some(100));
        check(&[(READY, 10), (Event::Stalled, 900), (INHERITED, 950)], 1_000, Some(100));
        check(&[(Event::Stalled, 5)], 10, None);
    }
}
