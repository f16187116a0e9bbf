//! How long the machine itself stood still: a latency measured on a busy machine says little without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What each turn of the watch asks for.
const TURN: Duration = Duration::from_millis(1);

/// A thread that asks to be woken every millisecond and remembers by how much it was late at most.
pub struct StallWatch {
    worst_micros: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StallWatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "measuring how late a sleep ends is what this thread is for"
    )]
    pub fn start() -> Self {
        let worst_micros = Arc::<AtomicU64>::default();
        let stop = Arc::<AtomicBool>::default();
        let (worst, until) = (Arc::clone(&worst_micros), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let before = Instant::now();
                std::thread::sleep(TURN);
                let late = before.elapsed().saturating_sub(TURN);
                worst.fetch_max(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { worst_micros, stop, thread: Some(thread) }
    }

    /// The longest stall since the start or the last [`Self::take_ms`], in whole milliseconds.
    pub fn longest_ms(&self) -> u64 {
        self.worst_micros.load(Ordering::Relaxed).div_ceil(1_000)
    }

    /// The longest stall since the last call, in milliseconds.
    pub fn take_ms(&self) -> f64 {
        self.worst_micros.swap(0, Ordering::Relaxed) as f64 / 1_000.0
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
