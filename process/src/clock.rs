//! The one place that reads clocks. Mains and I/O loops read them here and pass times on as values; decisions never
//! ask for the time.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What the clocks showed within [`one_moment`]; none of them is read before it is asked for.
struct Held {
    holds: Cell<bool>,
    /// Nanoseconds since [`ORIGIN`], or [`UNREAD`].
    nanos: Cell<u64>,
    unix_millis: Cell<u64>,
}

const UNREAD: u64 = u64::MAX;

thread_local! {
    static HELD: Held =
        const { Held { holds: Cell::new(false), nanos: Cell::new(UNREAD), unix_millis: Cell::new(UNREAD) } };
}

/// What all monotonic clocks of the process count from.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Runs something short for which no time passes: each clock is read once at most, however often it is asked. A request
/// asks some twenty times. What must not be late asks [`Monotonic::elapsed_now`].
pub fn one_moment<T>(work: impl FnOnce() -> T) -> T {
    /// Ends it also where the work panics.
    struct Release;
    impl Drop for Release {
        fn drop(&mut self) {
            HELD.with(|held| held.holds.set(false));
        }
    }
    HELD.with(|held| {
        held.holds.set(true);
        held.nanos.set(UNREAD);
        held.unix_millis.set(UNREAD);
    });
    let _release = Release;
    work()
}

/// What the moment that holds has in that place, read from its clock the first time.
fn held(place: fn(&Held) -> &Cell<u64>, read: fn() -> u64) -> u64 {
    HELD.with(|held| {
        let place = place(held);
        if held.holds.get() && place.get() != UNREAD {
            return place.get();
        }
        let value = read();
        place.set(value);
        value
    })
}

fn nanos() -> u64 {
    u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(UNREAD - 1)
}

/// Milliseconds since 1970 by the wall clock, 0 where it stands before that. It may jump: for expiry and ids only.
pub fn now_unix_millis() -> u64 {
    held(|held| &held.unix_millis, unix_millis)
}

#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
fn unix_millis() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(UNREAD - 1))
}

/// A clock that never goes back, counting from where it was started. Copies of one agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    /// Nanoseconds since [`ORIGIN`].
    start: u64,
}

impl Monotonic {
    pub fn start() -> Self {
        Self { start: nanos() }
    }

    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    fn nanos(&self) -> u64 {
        held(|held| &held.nanos, nanos).saturating_sub(self.start)
    }

    /// As [`Self::elapsed`], read now whatever moment holds: the process may have stood still since.
    pub fn elapsed_now(&self) -> Duration {
        Duration::from_nanos(nanos().saturating_sub(self.start))
    }

    /// Milliseconds since the start.
    pub fn millis(&self) -> u64 {
        self.nanos() / 1_000_000
    }

    /// Microseconds since the start.
    pub fn micros(&self) -> u64 {
        self.nanos() / 1_000
    }

    /// The instant at which this clock shows that many milliseconds, for `tokio::time::sleep_until`.
    pub fn at_millis(&self, millis: u64) -> Instant {
        *ORIGIN + Duration::from_nanos(self.start) + Duration::from_millis(millis)
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
    fn within_one_moment_no_time_passes_and_behind_it_it_does() {
        let clock = Monotonic::start();
        let (first, second) = one_moment(|| {
            let first = clock.elapsed();
            while clock.elapsed_now() == first {}
            (first, clock.elapsed())
        });
        assert_eq!(first, second);
        assert!(clock.elapsed() > first);
        let caught = std::panic::catch_unwind(|| one_moment(|| std::panic::resume_unwind(Box::new(()))));
        assert!(caught.is_err() && !HELD.with(|held| held.holds.get()));
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
