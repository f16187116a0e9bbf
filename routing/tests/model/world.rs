//! The world that routers, cells and destinations of one run share: its chance, its faults, its time, and what happened
//! in it.

use std::cell::{Cell, RefCell, RefMut};
use std::time::Duration;

use bulkhead_routing::transaction::RestartPolicy;
use tokio::time::Instant;

use crate::cell::Pod;
use crate::destination::{DESTINATIONS, Destination};
use crate::dice::Dice;
use crate::faults::{Fault, Flaw, Rates};
use crate::history::{History, Id};

pub(crate) struct World {
    pub(crate) dice: Dice,
    rates: Rates,
    flaw: Option<Flaw>,
    start: Instant,
    /// How often each fault struck.
    struck: RefCell<Vec<u64>>,
    history: RefCell<History>,
    /// Told as it happens, where one run is looked at alone.
    traced: bool,
    pub(crate) pods: Vec<Pod>,
    pub(crate) cells: usize,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) policy: RestartPolicy,
    pub(crate) owner: bool,
    /// Whether a repeated id waits for the first one's answer; else it is told that it is under way.
    pub(crate) joins: bool,
    next_id: Cell<Id>,
}

impl World {
    pub(crate) fn new(seed: u64, flaw: Option<Flaw>, traced: bool) -> Self {
        let dice = Dice::new(seed);
        let rates = Rates::draw(&dice);
        let cells = dice.pick(&[2, 3]);
        let pods = (0..cells).flat_map(|cell| (0..dice.pick(&[1, 2])).map(move |_| Pod::new(cell)));
        let until = RestartPolicy::UntilPointOfNoReturn;
        let policies = [until, until, until, until, RestartPolicy::SafeOnly, RestartPolicy::Never];
        Self {
            pods: pods.collect(),
            cells,
            destinations: DESTINATIONS.iter().map(|_| Destination::default()).collect(),
            policy: dice.pick(&policies),
            owner: dice.chance(100),
            joins: dice.chance(500),
            dice,
            rates,
            flaw,
            start: Instant::now(),
            struck: RefCell::new(vec![0; Fault::ALL.len()]),
            history: RefCell::default(),
            traced,
            next_id: Cell::new(0),
        }
    }

    /// Virtual milliseconds since the beginning.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).expect("a run is short")
    }

    pub(crate) async fn pass(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Whether that fault happens now.
    pub(crate) fn strikes(&self, fault: Fault) -> bool {
        let strikes = self.dice.chance(self.rates.of(fault));
        if strikes {
            self.struck.borrow_mut()[fault as usize] += 1;
            self.note(|| format!("{fault:?}"));
        }
        strikes
    }

    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    pub(crate) fn new_id(&self) -> Id {
        self.next_id.set(self.next_id.get() + 1);
        self.next_id.get()
    }

    /// Not to be held over an await.
    pub(crate) fn history(&self) -> RefMut<'_, History> {
        self.history.borrow_mut()
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        if self.traced {
            eprintln!("{:>7} ms  {}", self.now(), what());
        }
    }

    /// What happened, and how often each fault struck.
    pub(crate) fn end(&self) -> (History, Vec<u64>) {
        (self.history.take(), self.struck.take())
    }
}
