//! The ledger with its thread, on the file system of this machine.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{ANSWERED, id, intent, keyed};
use crate::effect::Standing;
use crate::history::Keep;
use crate::ledger::{Ledger, ResolveError};
use crate::opening::{OpenError, Recovery};
use crate::options::Options;
use crate::record::{Outcome, Resolution};
use crate::refusal::Refusal;
use crate::time::SystemClock;
use crate::view::{Filter, StandingView};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder can be made")
}

fn open(dir: &Path) -> (Ledger, Recovery) {
    let options = Options { segment_bytes: 4_096, reserve_bytes: 0, ..Options::new(dir) };
    Ledger::open(&options, SystemClock::start()).expect("opens")
}

async fn whole(ledger: &Ledger, number: u8, outcome: Outcome) {
    ledger.intend(intent(keyed(number), 1)).await.expect("is taken").end(outcome);
}

#[tokio::test]
async fn what_one_process_wrote_the_next_one_finds() {
    let folder = folder();
    let (ledger, recovery) = open(folder.path());
    assert_eq!(recovery, Recovery::default());
    for number in 0..90 {
        whole(&ledger, number, [ANSWERED, Outcome::Unknown, Outcome::NotSent][usize::from(number % 3)]).await;
    }
    ledger.close();
    drop(ledger);
    let (ledger, recovery) = open(folder.path());
    assert!(recovery.segments > 1 && recovery.damages.is_empty() && recovery.torn.is_empty(), "{recovery:?}");
    assert_eq!((recovery.transactions, recovery.unknown, recovery.left_open), (60, 30, 0));
    assert_eq!(ledger.standing(&keyed(0)), Some(Standing::Decided));
    assert_eq!(ledger.standing(&keyed(2)), None);
    ledger.resolve(keyed(1), 1, Resolution::Answered, "seen").await.expect("is unknown");
    let again = ledger.resolve(keyed(1), 1, Resolution::NotSent, "seen").await;
    assert!(matches!(again, Err(ResolveError::NotUnknown { .. })), "{again:?}");
    let unknown = ledger.list(&Filter { standing: Some(StandingView::Unknown), limit: 10 });
    assert_eq!((unknown.transactions.len(), unknown.more), (10, 19));
}

#[tokio::test]
async fn a_person_reads_while_a_router_writes_and_only_one_process_writes() {
    let folder = folder();
    let (ledger, _) = open(folder.path());
    whole(&ledger, 1, ANSWERED).await;
    let history = Ledger::read(folder.path(), Keep::One(keyed(1))).expect("can be read");
    assert_eq!((history.transactions.len(), history.damages.len()), (1, 0));
    let refused = Ledger::open(&Options::new(folder.path()), SystemClock::start()).map(drop);
    assert!(matches!(refused, Err(OpenError::Folder(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_wait_share_a_sync() {
    let folder = folder();
    let (ledger, _) = open(folder.path());
    let tasks = (0..200_u8).map(|number| {
        let ledger = ledger.clone();
        tokio::spawn(async move { whole(&ledger, number, ANSWERED).await })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("ends");
    }
    let registry = prometheus::Registry::new();
    ledger.register(&registry).expect("names are free");
    ledger.close();
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).expect("is text");
    assert!(text.contains("bulkhead_ledger_intents_total 200"), "{text}");
}

#[tokio::test]
async fn a_ledger_in_memory_answers_the_same_and_says_what_it_is() {
    let options = Options::new("");
    let ledger = Ledger::volatile(&options, SystemClock::start()).expect("needs no disk");
    whole(&ledger, 1, ANSWERED).await;
    whole(&ledger, 2, Outcome::Unknown).await;
    assert_eq!(ledger.standing(&keyed(1)), Some(Standing::Decided));
    ledger.resolve(keyed(2), 1, Resolution::NotSent, "seen").await.expect("is unknown");
    assert_eq!(ledger.standing(&keyed(2)), None);
    assert!(!ledger.is_durable());
    assert_eq!(ledger.list(&Filter { standing: None, limit: 1 }).notes.len(), 1);
    ledger.close();
    assert_eq!(ledger.accepts(), Err(Refusal::Closed));
}

/// Set for the process that `a_disk_that_refuses_to_write…` starts, which is this test again.
const CHILD: &str = "BULKHEAD_LEDGER_TEST_FOLDER";

/// The child writes to a folder in which no file may become larger than 16 blocks: at some byte the kernel refuses.
#[tokio::test]
async fn a_file_system_that_refuses_to_write_costs_a_segment_and_nothing_else() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return write_past_the_limit(Path::new(&dir)).await;
    }
    let folder = folder();
    let test = std::env::current_exe().expect("is known");
    let name = "tests::real::a_file_system_that_refuses_to_write_costs_a_segment_and_nothing_else";
    let child = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"])
        .arg(test)
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, folder.path())
        .output()
        .expect("sh is there");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let (ledger, recovery) = open(folder.path());
    assert!(recovery.damages.is_empty() && recovery.segments > 1, "{recovery:?}");
    // The child wrote to its folder how many were acknowledged.
    let acknowledged = std::fs::read_to_string(folder.path().join("acknowledged")).expect("was written");
    for number in 0..acknowledged.parse().expect("is a number") {
        assert_eq!(ledger.standing(&numbered(number)), Some(Standing::Decided), "{number}");
    }
}

fn numbered(number: u32) -> bulkhead_protocol::TransactionId {
    let mut bytes = *id(8, 0).as_bytes();
    bytes[10..14].copy_from_slice(&number.to_be_bytes());
    bulkhead_protocol::TransactionId::from_bytes(bytes)
}

async fn write_past_the_limit(dir: &Path) {
    let options =
        Options { reserve_bytes: 0, retry: std::time::Duration::from_millis(1), ..Options::new(dir) };
    let (ledger, _) = Ledger::open(&options, SystemClock::start()).expect("opens");
    let (acknowledged, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    while acknowledged.load(Ordering::Relaxed) < 300 {
        let number = acknowledged.load(Ordering::Relaxed);
        match ledger.intend(intent(numbered(number), 1)).await {
            Ok(intended) => {
                intended.end(ANSWERED);
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(Refusal::Disk(_)) => {
                refused.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused.into_inner() > 0, "the kernel refused");
    ledger.close();
    std::fs::write(dir.join("acknowledged"), acknowledged.into_inner().to_string()).expect("is small");
}
