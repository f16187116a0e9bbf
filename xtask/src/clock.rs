//! The only place where these tools read the clock or sleep. What to wait for is the caller's.

use std::time::{Duration, Instant};

use anyhow::Result;

/// The monotonic time now.
#[expect(clippy::disallowed_methods, reason = "the tools measure and wait for real processes")]
pub fn now() -> Instant {
    Instant::now()
}

/// Blocks the calling thread; these tools have no other work to do meanwhile.
#[expect(clippy::disallowed_methods, reason = "the tools are synchronous programs that wait for processes")]
pub fn rest(time: Duration) {
    std::thread::sleep(time);
}

/// Asks `check` until it has a value, and gives `None` when `limit` has passed without one.
///
/// # Errors
/// The first error of `check` ends the wait: it means that waiting longer is pointless.
pub fn until<T>(limit: Duration, mut check: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let begin = now();
    loop {
        if let Some(value) = check()? {
            return Ok(Some(value));
        }
        if begin.elapsed() > limit {
            return Ok(None);
        }
        rest(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_first_value() {
        let mut asked = 0;
        let got = until(Duration::from_secs(5), || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(got.unwrap(), Some(3));
    }

    #[test]
    fn a_wait_ends_without_a_value_when_its_time_is_over() {
        assert_eq!(until(Duration::ZERO, || Ok(None::<()>)).unwrap(), None);
    }
}
