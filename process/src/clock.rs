//! The one place that reads clocks. Mains and I/O loops read them here and pass times on as values; decisions never
//! ask for the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 by the wall clock, 0 where it stands before that. It may jump: for expiry and ids only.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub fn now_unix_millis() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A clock that never goes back, counting from where it was started. Copies of one agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    start: Instant,
}

impl Monotonic {
    #[expect(clippy::disallowed_methods, reason = "this is the clock module")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Milliseconds since the start.
    pub fn millis(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Microseconds since the start.
    pub fn micros(&self) -> u64 {
        u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The instant at which this clock shows that many milliseconds, for `tokio::time::sleep_until`.
    pub fn at_millis(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_is_past_2020() {
        assert!(now_unix_millis() > 1_577_836_800_000);
    }

    #[test]
    fn copies_of_a_monotonic_clock_agree_and_never_go_back() {
        let clock = Monotonic::start();
        let copy = clock;
        let first = clock.micros();
        assert!(copy.micros() >= first);
        assert_eq!(clock.at_millis(5), copy.at_millis(5));
    }
}
