//! Waiting for a state of the world instead of sleeping.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Between two looks. Short, because what is waited for is often the latency that a test states.
const INTERVAL: Duration = Duration::from_millis(50);

/// Calls `look` until it gives a value, and fails with its last complaint after `deadline`.
///
/// # Errors
/// When the deadline passes.
#[expect(
    clippy::disallowed_methods,
    reason = "waiting for a state needs a clock and a pause between two looks"
)]
pub fn eventually<T>(deadline: Duration, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return Ok(value),
            Err(complaint) if start.elapsed() >= deadline => {
                return Err(complaint.context(format!("not so after {deadline:?}")));
            }
            Err(_) => std::thread::sleep(INTERVAL),
        }
    }
}

/// Calls `look` all the way through `span` and fails at the first time that it complains.
///
/// # Errors
/// The first complaint.
#[expect(clippy::disallowed_methods, reason = "watching a state needs a clock and a pause between two looks")]
pub fn holds_for(span: Duration, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < span {
        look().map_err(|complaint| anyhow!("after {:?}: {complaint:#}", start.elapsed()))?;
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
