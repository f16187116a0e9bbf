//! The thread on which the writer runs, so that nobody else ever waits for the disk in person.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::queue::Taken;
use crate::shared::Shared;
use crate::writer::Writer;

/// Jobs that are written at once. What waits behind them shares the next sync.
const BATCH: usize = 4_096;
/// Between two looks at space, windows and outcomes that are not synced yet.
const TICK: Duration = Duration::from_secs(1);

/// Starts it; it ends when the queue is closed and empty. `tick` is no longer than [`TICK`].
pub(crate) fn start(mut writer: Writer, shared: Arc<Shared>, tick: Duration) -> io::Result<JoinHandle<()>> {
    let tick = tick.min(TICK);
    let tick_micros = u64::try_from(tick.as_micros()).unwrap_or(u64::MAX);
    std::thread::Builder::new().name("ledger".to_owned()).spawn(move || {
        let mut ticked = shared.time.micros();
        loop {
            match shared.queue.take(BATCH, tick) {
                Taken::Jobs(jobs) => writer.write(jobs),
                Taken::Closed => break writer.close(),
            }
            if shared.time.micros().saturating_sub(ticked) >= tick_micros {
                ticked = shared.time.micros();
                writer.tick();
            }
        }
    })
}
