//! The one place that reads clocks. Mains and I/O loops read them here and pass times on as values; decisions never
//! ask for the time.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

thread_local! {
    static HELD: Cell<Option<Moment>> = const { Cell::new(None) };
}

/// What the clocks showed within [`one_moment`]; none of them is read before it is asked for.
#[derive(Clone, Copy, Default)]
struct Moment {
    now: Option<Instant>,
    unix_millis: Option<u64>,
}

/// Runs something short for which no time passes: each clock is read once at most, however often it is asked. A request
/// asks some twenty times. What must not be late asks [`Monotonic::elapsed_now`].
pub fn one_moment<T>(work: impl FnOnce() -> T) -> T {
    /// Ends it also where the work panics.
    struct Release;
    impl Drop for Release {
        fn drop(&mut self) {
            HELD.set(None);
        }
    }
    HELD.set(Some(Moment::default()));
    let _release = Release;
    work()
}

/// The field of the moment that holds, read from its clock the first time.
fn held<T: Copy>(field: fn(&mut Moment) -> &mut Option<T>, read: impl FnOnce() -> T) -> T {
    let Some(mut moment) = HELD.get() else { return read() };
    let value = *field(&mut moment).get_or_insert_with(read);
    HELD.set(Some(moment));
    value
}

/// Milliseconds since 1970 by the wall clock, 0 where it stands before that. It may jump: for expiry and ids only.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub fn now_unix_millis() -> u64 {
    held(
        |moment| &mut moment.unix_millis,
        || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
        },
    )
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

    #[expect(clippy::disallowed_methods, reason = "this is the clock module")]
    pub fn elapsed(&self) -> Duration {
        held(|moment| &mut moment.now, Instant::now).saturating_duration_since(self.start)
    }

    /// As [`Self::elapsed`], read now whatever moment holds: the process may have stood still since.
    pub fn elapsed_now(&self) -> Duration {
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
        assert!(caught.is_err() && HELD.get().is_none());
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
