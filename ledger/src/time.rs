//! The ledger's time. It never goes back, over restarts and jumps of the wall clock too, so that nothing is forgotten
//! before its window is over.

use std::sync::Arc;

use bulkhead_process::{Monotonic, clock};

/// What the ledger reads of clocks.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970 by the wall clock. It may jump.
    fn unix_millis(&self) -> u64;
    /// Microseconds since any moment. It never goes back.
    fn micros(&self) -> u64;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Monotonic);

impl SystemClock {
    pub fn start() -> Self {
        Self(Monotonic::start())
    }
}

impl Clock for SystemClock {
    fn unix_millis(&self) -> u64 {
        clock::now_unix_millis()
    }

    fn micros(&self) -> u64 {
        self.0.micros()
    }
}

/// Milliseconds since 1970 as the wall clock had it at the start, or as the newest record has it if that is later, and
/// from there on what has passed. A wall clock that stood behind makes the window longer by as much, once.
#[derive(Clone)]
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    start_ms: u64,
    start_micros: u64,
}

impl Time {
    pub(crate) fn start(clock: Arc<dyn Clock>, newest_ms: u64) -> Self {
        Self { start_ms: clock.unix_millis().max(newest_ms), start_micros: clock.micros(), clock }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.start_ms + self.micros().saturating_sub(self.start_micros) / 1_000
    }

    pub(crate) fn micros(&self) -> u64 {
        self.clock.micros()
    }
}

#[cfg(test)]
pub(crate) mod manual {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A clock that stands until a test moves it.
    #[derive(Default)]
    pub(crate) struct ManualClock {
        pub(crate) unix_millis: AtomicU64,
        pub(crate) micros: AtomicU64,
    }

    impl ManualClock {
        pub(crate) fn at(unix_millis: u64) -> Arc<Self> {
            Arc::new(Self { unix_millis: unix_millis.into(), micros: 0.into() })
        }

        pub(crate) fn pass_ms(&self, millis: u64) {
            self.unix_millis.fetch_add(millis, Ordering::Relaxed);
            self.micros.fetch_add(millis * 1_000, Ordering::Relaxed);
        }

        pub(crate) fn jump_to(&self, unix_millis: u64) {
            self.unix_millis.store(unix_millis, Ordering::Relaxed);
        }
    }

    impl Clock for ManualClock {
        fn unix_millis(&self) -> u64 {
            self.unix_millis.load(Ordering::Relaxed)
        }

        fn micros(&self) -> u64 {
            self.micros.load(Ordering::Relaxed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::manual::ManualClock;
    use super::*;

    #[test]
    fn a_wall_clock_that_jumps_moves_nothing_while_the_ledger_is_open() {
        let clock = ManualClock::at(5_000);
        let time = Time::start(clock.clone(), 0);
        clock.jump_to(1);
        clock.pass_ms(10);
        assert_eq!(time.now_ms(), 5_010);
        clock.jump_to(9_000_000);
        assert_eq!(time.now_ms(), 5_010);
    }

    #[test]
    fn a_wall_clock_that_was_set_back_between_two_starts_goes_on_from_the_newest_record() {
        let clock = ManualClock::at(1_000);
        let time = Time::start(clock.clone(), 5_000);
        assert_eq!(time.now_ms(), 5_000);
        clock.pass_ms(7);
        assert_eq!(time.now_ms(), 5_007);
    }
}
