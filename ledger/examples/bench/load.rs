//! Tasks that intend an effect, end it, and begin again; and how much memory and disk that takes.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_ledger::{Intent, Ledger, Options, Outcome, SystemClock};
use bulkhead_process::{Monotonic, clock::now_unix_millis};
use bulkhead_protocol::TransactionId;

use crate::disk::{Syncs, Timed};
use bulkhead_ledger::disk::Folder;

/// Transactions in memory for [`bytes_in_memory`].
const HELD: u64 = 200_000;
const ANSWERED: Outcome = Outcome::Answered { status: Some(200) };

/// One count of tasks in one round.
pub(crate) struct Measured {
    pub(crate) per_second: f64,
    /// Microseconds of each intent.
    pub(crate) intents: Vec<u64>,
    /// Microseconds of each sync.
    pub(crate) syncs: Vec<u64>,
    pub(crate) bytes_on_disk: u64,
}

pub(crate) fn run(dir: &Path, tasks: u32, span: Duration) -> Result<Measured> {
    let clock = Monotonic::start();
    let syncs = Syncs::default();
    let folder = Folder::lock(dir, now_unix_millis())?;
    let disk = Timed { folder, clock, syncs: Arc::clone(&syncs) };
    let options = Options { transactions: usize::MAX, ..Options::new(dir) };
    let (ledger, _) = Ledger::open_on(Box::new(disk), &options, SystemClock::start())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let numbers = Arc::new(AtomicU64::new(0));
    let until = clock.micros() + u64::try_from(span.as_micros())?;
    let intents = runtime.block_on(async {
        let tasks = (0..tasks).map(|_| {
            let (ledger, numbers) = (ledger.clone(), Arc::clone(&numbers));
            tokio::spawn(async move { one(&ledger, &numbers, clock, until).await })
        });
        let mut intents = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            intents.extend(task.await.context("a task broke")??);
        }
        anyhow::Ok(intents)
    })?;
    let seconds = span.as_secs_f64() + (clock.micros().saturating_sub(until)) as f64 / 1e6;
    ledger.close();
    let syncs = std::mem::take(&mut *syncs.lock().unwrap_or_else(PoisonError::into_inner));
    let mut bytes_on_disk = 0;
    for entry in std::fs::read_dir(dir)? {
        bytes_on_disk += entry?.metadata()?.len();
    }
    Ok(Measured { per_second: intents.len() as f64 / seconds, intents, syncs, bytes_on_disk })
}

/// What one task measured of its intents.
async fn one(ledger: &Ledger, numbers: &AtomicU64, clock: Monotonic, until: u64) -> Result<Vec<u64>> {
    let (cell, destination) = (Arc::from("payments-a"), Arc::from("visa"));
    let mut micros = Vec::new();
    loop {
        let before = clock.micros();
        if before >= until {
            return Ok(micros);
        }
        let id = keyed(numbers.fetch_add(1, Ordering::Relaxed));
        let (cell, destination) = (Arc::clone(&cell), Arc::clone(&destination));
        let intended = ledger.intend(Intent { id, n: 1, attempt: 1, cell, destination }).await?;
        micros.push(clock.micros() - before);
        intended.end(ANSWERED);
    }
}

/// Bytes that this process grows by for each transaction that is held for its window.
pub(crate) fn bytes_in_memory() -> Result<f64> {
    let options = Options { transactions: usize::MAX, ..Options::new("") };
    let ledger = Ledger::volatile(&options, SystemClock::start())?;
    let (cell, destination) = (Arc::from("payments-a"), Arc::from("visa"));
    let before = resident()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        for number in 0..HELD {
            let (cell, destination) = (Arc::clone(&cell), Arc::clone(&destination));
            let intent = Intent { id: keyed(number), n: 1, attempt: 1, cell, destination };
            ledger.intend(intent).await?.end(ANSWERED);
        }
        anyhow::Ok(())
    })?;
    Ok(resident()?.saturating_sub(before) as f64 / HELD as f64)
}

/// Bytes of this process in memory.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1_024)
}

/// An id as from a client's key: spread like a hash.
fn keyed(number: u64) -> TransactionId {
    let spread = u128::from(number.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    let mut bytes = spread.to_be_bytes();
    bytes[6] = 0x80 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    TransactionId::from_bytes(bytes)
}
