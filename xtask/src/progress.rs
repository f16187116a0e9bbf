//! Tells a person what a long step is doing and how long it took. All of it goes to standard error, so
//! that standard output stays for what scripts read.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Result;

use crate::clock;

const REMINDER: Duration = Duration::from_secs(30);

/// A remark between steps.
pub fn note(text: &str) {
    eprintln!("{text}");
}

/// Does `work`, saying `what` at its begin and its end, and every half minute between them.
///
/// # Errors
/// Those of `work`.
pub fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = clock::now();
    eprintln!("{what} …");
    let (done, waiting) = channel::<()>();
    let result = std::thread::scope(|scope| {
        scope.spawn(move || {
            while waiting.recv_timeout(REMINDER) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{what}: still at it after {}", elapsed(begin.elapsed()));
            }
        });
        let result = work();
        drop(done);
        result
    });
    let word = if result.is_ok() { "done" } else { "failed" };
    eprintln!("{what}: {word} after {}", elapsed(begin.elapsed()));
    result
}

/// A duration as people say it: `0.4 s`, `12 s`, `8 min 40 s`.
pub fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..=9 => format!("{:.1} s", time.as_secs_f64()),
        10..=119 => format!("{seconds} s"),
        _ => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_say_them() {
        let check = |milliseconds, expected: &str| {
            assert_eq!(elapsed(Duration::from_millis(milliseconds)), expected);
        };
        check(420, "0.4 s");
        check(12_300, "12 s");
        check(520_000, "8 min 40 s");
    }
}
