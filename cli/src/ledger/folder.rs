//! A ledger in a folder: read beside a router that runs, or opened in its place to resolve an effect.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_ledger::view::{Filter, ListView, ResolveView};
use bulkhead_ledger::{History, Keep, Ledger, Options, SystemClock};
use bulkhead_protocol::TransactionId;

pub(super) fn list(dir: &Path, filter: &Filter) -> Result<ListView> {
    Ok(read(dir, Keep::All)?.list(filter))
}

pub(super) fn show(dir: &Path, id: TransactionId) -> Result<ListView> {
    Ok(read(dir, Keep::One(id))?.list(&Filter::ALL))
}

fn read(dir: &Path, keep: Keep) -> Result<History> {
    Ledger::read(dir, keep).with_context(|| format!("{} cannot be read as a ledger", dir.display()))
}

/// Opens the ledger as a router does, so that what that one left open is unknown from then on.
pub(super) async fn resolve(
    dir: &Path,
    id: TransactionId,
    n: u32,
    asked: &ResolveView,
) -> Result<Vec<String>> {
    // Opening makes a folder that is not there, and a mistyped one would be a new ledger.
    ensure!(dir.is_dir(), "{} is no folder", dir.display());
    // How long standings are kept is the router's to say: nothing goes here. A few bytes are written however full it is.
    let options = Options { window: Duration::MAX, reserve_bytes: 0, ..Options::new(dir) };
    let (ledger, recovery) = Ledger::open(&options, SystemClock::start())?;
    let resolved = ledger.resolve(id, n, asked.r#as.into(), &asked.note).await;
    ledger.close();
    resolved?;
    Ok(recovery.damages.iter().map(ToString::to_string).collect())
}
