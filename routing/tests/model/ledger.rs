//! A router's ledger and the disk beneath it: records are appended, synced in groups, and torn where power is lost. The
//! disk outlives its router; the index does not, and is read from it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bulkhead_protocol::{EgressStatus, Reason};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::faults::{Fault, Flaw};
use crate::history::{Id, Told};
use crate::world::World;

type Effect = (Id, u32);

#[derive(Clone, Copy)]
enum Record {
    Intent(Effect),
    Outcome(Effect, EgressStatus),
}

struct Entry {
    record: Record,
    /// Whoever waits for it to be on the disk.
    told: Option<oneshot::Sender<bool>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Open,
    Settled(EgressStatus),
}

pub(crate) struct Ledger {
    world: Rc<World>,
    /// What a reader finds after any loss of power.
    disk: RefCell<Vec<Record>>,
    /// Written and not known to be on the disk, oldest first.
    unsynced: RefCell<Vec<Entry>>,
    is_syncing: Cell<bool>,
    /// A failed sync seals its segment; until then there is no other.
    sealed_until: Cell<u64>,
    /// Counts losses of power, so that a sync of before comes to nothing.
    life: Cell<u32>,
    index: RefCell<BTreeMap<Effect, Standing>>,
}

impl Ledger {
    pub(crate) fn new(world: Rc<World>) -> Rc<Self> {
        Rc::new(Self {
            world,
            disk: RefCell::default(),
            unsynced: RefCell::default(),
            is_syncing: Cell::new(false),
            sealed_until: Cell::new(0),
            life: Cell::new(0),
            index: RefCell::default(),
        })
    }

    pub(crate) fn takes_records(&self) -> bool {
        self.world.now() >= self.sealed_until.get()
    }

    /// What a request with that id is told instead of being run, if anything.
    pub(crate) fn standing(&self, id: Id) -> Option<Told> {
        let index = self.index.borrow();
        let mut told = None;
        for standing in index.range((id, 0)..=(id, u32::MAX)).map(|(_, standing)| standing) {
            match standing {
                Standing::Open | Standing::Settled(EgressStatus::Unknown) => return Some(Told::Unknown),
                Standing::Settled(EgressStatus::Answered) => told = Some(Told::Decided),
                Standing::Settled(EgressStatus::NotSent) => {}
            }
        }
        told
    }

    /// Puts an intent on the disk.
    pub(crate) async fn record(self: &Rc<Self>, effect: Effect) -> Result<(), Reason> {
        if !self.takes_records() {
            return Err(Reason::LedgerUnavailable);
        }
        self.index.borrow_mut().insert(effect, Standing::Open);
        let (told, synced) = oneshot::channel();
        self.append(Record::Intent(effect), Some(told));
        if synced.await.unwrap_or(false) {
            return Ok(());
        }
        // It may be on the disk all the same, and is then unknown to whoever reads it.
        self.index.borrow_mut().insert(effect, Standing::Settled(EgressStatus::NotSent));
        Err(Reason::LedgerUnavailable)
    }

    /// Puts on record what became of it, and waits for nothing.
    pub(crate) fn settle(self: &Rc<Self>, effect: Effect, status: EgressStatus) {
        self.index.borrow_mut().insert(effect, Standing::Settled(status));
        if self.takes_records() {
            self.append(Record::Outcome(effect, status), None);
        }
    }

    fn append(self: &Rc<Self>, record: Record, told: Option<oneshot::Sender<bool>>) {
        self.unsynced.borrow_mut().push(Entry { record, told });
        if !self.is_syncing.replace(true) {
            spawn_local(Rc::clone(self).sync(self.life.get()));
        }
    }

    /// Syncs in groups until nothing is left.
    async fn sync(self: Rc<Self>, life: u32) {
        loop {
            let group = self.unsynced.borrow().len();
            if group == 0 {
                return self.is_syncing.set(false);
            }
            self.world.pass(self.world.dice.between(1..=8)).await;
            if self.life.get() != life {
                return;
            }
            let fails = self.world.strikes(Fault::SyncFails);
            let group: Vec<Entry> = self.unsynced.borrow_mut().drain(..group).collect();
            for Entry { record, told } in group {
                // The kernel drops what it could not write and calls it clean.
                if !fails || self.world.dice.chance(500) {
                    self.disk.borrow_mut().push(record);
                }
                if let Some(told) = told {
                    let _ = told.send(!fails || self.world.has(Flaw::RetriesAFailedSync));
                }
            }
            if fails && !self.world.has(Flaw::RetriesAFailedSync) {
                self.sealed_until.set(self.world.now() + self.world.dice.between(10..=500));
            }
        }
    }

    /// Power is lost. What was not synced is on the disk up to somewhere; the record after that is torn, which its
    /// checksum tells.
    pub(crate) fn lose_power(&self) {
        self.life.set(self.life.get() + 1);
        self.is_syncing.set(false);
        let mut unsynced = self.unsynced.borrow_mut();
        let whole = self.world.dice.below(unsynced.len() + 1);
        self.disk.borrow_mut().extend(unsynced.drain(..).take(whole).map(|entry| entry.record));
        self.index.borrow_mut().clear();
    }

    /// Reads the disk, before anybody is listened to. An intent without an outcome is unknown.
    pub(crate) fn read(&self) {
        self.sealed_until.set(0);
        if self.world.has(Flaw::ForgetsTheLedger) {
            return;
        }
        let mut index = self.index.borrow_mut();
        for record in self.disk.borrow().iter() {
            match *record {
                Record::Intent(effect) => index.insert(effect, Standing::Open),
                Record::Outcome(effect, status) => index.insert(effect, Standing::Settled(status)),
            };
        }
    }

    pub(crate) fn is_on_disk(&self, effect: Effect) -> bool {
        self.effects().contains(&effect)
    }

    /// The effects whose intent is on the disk.
    pub(crate) fn effects(&self) -> BTreeSet<Effect> {
        let intent = |record: &Record| match record {
            Record::Intent(effect) => Some(*effect),
            Record::Outcome(..) => None,
        };
        self.disk.borrow().iter().filter_map(intent).collect()
    }
}
