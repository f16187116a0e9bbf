//! The ledger as the rest of a program sees it: one handle, cheap to clone, from any thread.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bulkhead_protocol::TransactionId;
use prometheus::Registry;
use tokio::sync::oneshot;

use crate::disk::{Disk, Folder};
use crate::effect::{Standing, State};
use crate::history::{self, History, Keep, ReadError};
use crate::index::Key;
use crate::metrics::Metrics;
use crate::opening::{self, OpenError, Recovery};
use crate::options::Options;
use crate::queue::Job;
use crate::record::{Intent, MAX_CELL, MAX_DESTINATION, MAX_NOTE, Outcome, Record, Resolution, printable};
use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::thread;
use crate::time::{Clock, Time};
use crate::view::{Filter, ListView, Newest, TransactionView};

/// The record of effects outside the cells. The last handle that goes closes it.
#[derive(Clone)]
pub struct Ledger(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    durable: bool,
    /// Absent where nothing is written, and once it has ended.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Sentences about what the start found.
    damages: Vec<String>,
    notes: Vec<String>,
}

/// Comes once the disk has the record, or will not have it.
type Answer = oneshot::Receiver<Result<(), Refusal>>;

/// Why an effect could not be resolved. It is as it was before; where the disk failed, the next start may find it resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error(
        "the ledger holds no effect {n} of transaction {id}; `bulkhead ledger list` shows those it holds"
    )]
    NotFound { id: TransactionId, n: u32 },
    #[error("effect {n} of transaction {id} is {state:?}; only one that is unknown can be resolved")]
    NotUnknown { id: TransactionId, n: u32, state: State },
    #[error("the note must be printable text of 1 to {MAX_NOTE} bytes that says how you know")]
    Note,
    #[error("it could not be written: {0}")]
    Refused(#[from] Refusal),
}

impl Ledger {
    /// Opens the ledger in a folder, which no other process may hold, and reads all of it first. It waits for the disk.
    ///
    /// # Errors
    /// When the folder cannot be made or read, another process holds it, or a newer format is in it. Damage is no error:
    /// it is in the [`Recovery`], and what is known is served. Nor is a disk that takes no writes: [`Self::accepts`]
    /// says so.
    pub fn open(options: &Options, clock: impl Clock) -> Result<(Self, Recovery), OpenError> {
        let folder = Folder::lock(&options.dir, clock.unix_millis())?;
        Self::open_on(Box::new(folder), options, clock)
    }

    /// As [`Self::open`], on any disk; the folder of the options is not looked at.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_on(
        disk: Box<dyn Disk>,
        options: &Options,
        clock: impl Clock,
    ) -> Result<(Self, Recovery), OpenError> {
        let (shared, writer, recovery) = opening::open(disk, options, Arc::new(clock))?;
        let thread = thread::start(writer, Arc::clone(&shared), options.retry).map_err(OpenError::Thread)?;
        let mut ledger = Self::of(shared, true, Some(thread));
        if let Some(handle) = Arc::get_mut(&mut ledger.0) {
            handle.damages = recovery.damages.iter().map(ToString::to_string).collect();
            handle.notes = recovery.torn.iter().map(ToString::to_string).collect();
        }
        Ok((ledger, recovery))
    }

    /// A ledger that writes nothing: a restart forgets all of it, also what is unknown. For routers without a volume.
    ///
    /// # Errors
    /// When the metrics cannot be made, which they can.
    pub fn volatile(options: &Options, clock: impl Clock) -> Result<Self, OpenError> {
        let time = Time::start(Arc::new(clock), 0);
        let mut ledger = Self::of(Arc::new(Shared::new(options, time, Metrics::new()?)), false, None);
        if let Some(handle) = Arc::get_mut(&mut ledger.0) {
            handle.notes.push("this ledger is in memory alone: a restart forgets it".to_owned());
        }
        Ok(ledger)
    }

    pub(crate) fn of(shared: Arc<Shared>, durable: bool, thread: Option<JoinHandle<()>>) -> Self {
        let thread = Mutex::new(thread);
        Self(Arc::new(Handle { shared, durable, thread, damages: Vec::new(), notes: Vec::new() }))
    }

    /// Reads a ledger in a folder without opening it: no lock is taken and nothing is written, so that a router may hold
    /// it. What that router has not yet synced may be missing. It waits for the disk.
    ///
    /// # Errors
    /// When the folder cannot be read, or a newer format is in it.
    pub fn read(dir: &Path, keep: Keep) -> Result<History, ReadError> {
        history::read(&Folder::to_read(dir), keep)
    }

    /// Whether what it holds outlives the process.
    pub fn is_durable(&self) -> bool {
        self.0.durable
    }

    /// Whether intents are taken now: ask before a transaction is begun. One atomic load while all is well.
    ///
    /// # Errors
    /// Why not.
    pub fn accepts(&self) -> Result<(), Refusal> {
        self.0.shared.accepting.check()
    }

    /// What is known of a transaction's effects. `None` where it may be attempted.
    pub fn standing(&self, id: &TransactionId) -> Option<Standing> {
        self.0.shared.index.standing(id)
    }

    /// Writes down that an effect is about to be sent, and returns once that is on the disk. Only then may its first byte
    /// go out. Whoever drops the future has sent nothing, and that is written down too.
    ///
    /// # Errors
    /// When it is not on the disk: nothing may be sent, and the effect leaves no standing.
    pub async fn intend(&self, intent: Intent) -> Result<Intended, Refusal> {
        let begun = self.begin(intent);
        let (mut intended, answer) = begun.inspect_err(|refusal| self.0.shared.metrics.refused(refusal))?;
        match answer {
            Some(answer) => answer.await.unwrap_or(Err(Refusal::Closed)),
            None => {
                self.0.shared.metrics.intents.inc();
                Ok(())
            }
        }
        .inspect_err(|refusal| self.0.shared.metrics.refused(refusal))?;
        intended.unless_told = Outcome::Unknown;
        Ok(intended)
    }

    fn begin(&self, intent: Intent) -> Result<(Intended, Option<Answer>), Refusal> {
        self.accepts()?;
        if !printable(&intent.cell, MAX_CELL) {
            return Err(Refusal::Name(intent.cell));
        }
        if !printable(&intent.destination, MAX_DESTINATION) {
            return Err(Refusal::Name(intent.destination));
        }
        let shared = &self.0.shared;
        let (at_ms, serial) = (shared.time.now_ms(), shared.next_serial());
        let key = Key { id: intent.id, n: intent.n, serial };
        let mut answer = None;
        shared.index.begin(&intent, at_ms, shared.segment(), serial, || {
            if !self.is_durable() {
                return Ok(());
            }
            let (reply, receiver) = oneshot::channel();
            answer = Some(receiver);
            shared.queue.push(Job::Intent { intent: intent.clone(), at_ms, serial, reply })
        })?;
        let intended = Intended { ledger: self.clone(), key, unless_told: Outcome::NotSent };
        Ok((intended, answer))
    }

    fn end(&self, key: Key, outcome: Outcome) {
        let shared = &self.0.shared;
        let at_ms = shared.time.now_ms();
        shared.index.end(key, outcome, at_ms, || {
            let record = Record::Outcome { id: key.id, n: key.n, at_ms, outcome };
            if self.is_durable() && shared.queue.push(Job::Outcome(record)).is_err() {
                shared.metrics.lost_outcomes.inc();
            }
        });
    }

    /// Takes over what a person found out about an unknown effect, and returns once that is on the disk.
    ///
    /// # Errors
    /// When there is no such effect, it is not unknown, the note cannot be written, or the disk fails.
    pub async fn resolve(
        &self,
        id: TransactionId,
        n: u32,
        resolution: Resolution,
        note: &str,
    ) -> Result<(), ResolveError> {
        if note.trim().is_empty() || !printable(note, MAX_NOTE) {
            return Err(ResolveError::Note);
        }
        let effects = self.0.shared.index.show(&id);
        let effect = effects.iter().find(|effect| effect.n == n).ok_or(ResolveError::NotFound { id, n })?;
        if effect.state != State::Unknown {
            return Err(ResolveError::NotUnknown { id, n, state: effect.state });
        }
        let shared = &self.0.shared;
        let at_ms = shared.time.now_ms();
        if !self.is_durable() {
            shared.index.resolve(&id, n, resolution, &note.into(), at_ms);
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        let record = Record::Resolution { id, n, at_ms, resolution, note: note.into() };
        shared.queue.push(Job::Resolution { record, reply })?;
        Ok(answer.await.unwrap_or(Err(Refusal::Closed))?)
    }

    /// The transactions that are held in memory: those under way, those unknown, and those whose client may ask again.
    pub fn list(&self, filter: &Filter) -> ListView {
        let mut newest = Newest::new(*filter);
        self.0.shared.index.each(|id, effects| newest.offer(id, effects));
        self.with_findings(newest.list(|id| self.view(id)))
    }

    /// A transaction that is held in memory, or none.
    pub fn show(&self, id: &TransactionId) -> ListView {
        let transactions = self.view(id).into_iter().collect();
        self.with_findings(ListView { transactions, ..ListView::default() })
    }

    fn view(&self, id: &TransactionId) -> Option<TransactionView> {
        let effects = self.0.shared.index.show(id);
        (!effects.is_empty()).then(|| TransactionView::new(id, &effects))
    }

    /// What the start found goes with every answer, until a start finds it no longer.
    fn with_findings(&self, list: ListView) -> ListView {
        ListView { damages: self.0.damages.clone(), notes: self.0.notes.clone(), ..list }
    }

    /// # Errors
    /// When a registry has metrics of these names already.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        self.0.shared.metrics.register(registry)
    }

    /// Takes no more, writes what waits, and seals the segment. It waits for the disk. Later outcomes are not written, and
    /// the next start reads their effects as unknown: end what is under way first.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Handle {
    fn close(&self) {
        self.shared.accepting.set(Some(Refusal::Closed));
        self.shared.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the ledger's thread broke; what it did not write is read as unknown");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

/// An effect whose intent is on the disk: it may be sent now. It is ended by [`Self::end`]; dropped without that, it is
/// unknown, because then nobody can say that nothing was sent.
#[must_use = "an effect that is not ended is unknown, and a person has to see to it"]
pub struct Intended {
    ledger: Ledger,
    key: Key,
    unless_told: Outcome,
}

impl Intended {
    pub fn id(&self) -> TransactionId {
        self.key.id
    }

    pub fn n(&self) -> u32 {
        self.key.n
    }

    /// Writes down what became of it. Nobody waits for the disk: an outcome that is lost with the machine's power is read
    /// as unknown, which is safe.
    pub fn end(mut self, outcome: Outcome) {
        self.unless_told = outcome;
    }
}

impl Drop for Intended {
    fn drop(&mut self) {
        self.ledger.end(self.key, self.unless_told);
    }
}

impl std::fmt::Debug for Intended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Intended({}/{})", self.key.id, self.key.n)
    }
}
