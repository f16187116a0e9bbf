//! Application logs: lines to stdout through a bounded queue that drops and counts rather than wait. Records of
//! effects do not go this way.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args, ValueEnum};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, Registry};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that may wait for a slow reader before new ones are dropped.
const QUEUE_LINES: usize = 16_384;

/// Flags about logs, to be flattened into a binary's own.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// What to log: a level, or `TARGET=LEVEL` pairs separated by commas.
    #[arg(long, env = "BULKHEAD_LOG", default_value = "info")]
    pub log: Targets,
    /// How lines look. `auto` is text on a terminal, else JSON.
    #[arg(long, env = "BULKHEAD_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Auto,
    Json,
    Text,
}

/// Keeps the writer alive; lines still queued are written when it is dropped, so bind it to a name in `main`.
pub struct LogGuard {
    dropped: ErrorCounter,
    _worker: WorkerGuard,
}

impl LogGuard {
    /// Exports the number of dropped lines as `bulkhead_log_dropped_total`.
    ///
    /// # Errors
    /// When the registry has a metric of that name already.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(DroppedLines::new(self.dropped.clone())?))
    }
}

/// Starts logging. Where the process logs already (tests, the demo), the first subscriber stays.
pub fn init(args: &LogArgs) -> LogGuard {
    let (writer, worker) =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUE_LINES).finish(io::stdout());
    let dropped = writer.error_counter();
    install(args, writer);
    LogGuard { dropped, _worker: worker }
}

fn install(args: &LogArgs, writer: NonBlocking) {
    let json = match args.log_format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !io::stdout().is_terminal(),
    };
    let registry = tracing_subscriber::registry().with(args.log.clone());
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let installed = if json {
        registry.with(lines.json().flatten_event(true)).try_init()
    } else {
        registry.with(lines.with_ansi(io::stdout().is_terminal())).try_init()
    };
    if installed.is_err() {
        tracing::debug!("this process logs already");
    }
}

/// A counter that follows the queue's own.
struct DroppedLines {
    counter: IntCounter,
    queue: ErrorCounter,
    seen: AtomicU64,
}

impl DroppedLines {
    fn new(queue: ErrorCounter) -> prometheus::Result<Self> {
        let counter = IntCounter::new(
            "bulkhead_log_dropped_total",
            "Log lines dropped because their reader was too slow.",
        )?;
        Ok(Self { counter, queue, seen: AtomicU64::new(0) })
    }
}

impl Collector for DroppedLines {
    fn desc(&self) -> Vec<&Desc> {
        self.counter.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = u64::try_from(self.queue.dropped_lines()).unwrap_or(u64::MAX);
        let before = self.seen.fetch_max(now, Ordering::Relaxed);
        self.counter.inc_by(now.saturating_sub(before));
        self.counter.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::metrics::encode;

    /// Holds the queue's reader until the sender is dropped, and counts the lines that it gets.
    struct Stuck(mpsc::Receiver<()>, Arc<AtomicU64>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_reader_blocks_nobody_and_what_is_dropped_is_counted() {
        let ((release, held), written) = (mpsc::channel(), Arc::default());
        let stuck = Stuck(held, Arc::clone(&written));
        let (mut writer, worker) =
            NonBlockingBuilder::default().lossy(true).buffered_lines_limit(2).finish(stuck);
        let guard = LogGuard { dropped: writer.error_counter(), _worker: worker };
        let registry = Registry::new();
        guard.register(&registry).expect("the first of its name");
        for _ in 0..100 {
            writer.write_all(b"line\n").expect("never fails");
        }
        let dropped = guard.dropped.dropped_lines();
        assert!(dropped >= 90, "{dropped}");
        assert!(encode(&registry).contains(&format!("bulkhead_log_dropped_total {dropped}\n")));
        drop(release);
        // What is queued is written.
        drop(guard);
        assert_eq!(written.load(Ordering::Relaxed) + dropped as u64, 100);
    }
}
