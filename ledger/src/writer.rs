//! The one that writes: batches to the newest segment, one sync for all that waited, and a new segment when that one is
//! full or failed. Nothing else touches the disk after the start. It does what it is told, job by job, so that tests
//! drive it without its thread (`thread`).

use std::io;
use std::sync::Arc;

use crate::compaction::Segments;
use crate::disk::{Append, Disk, Space, write_all};
use crate::frame::Header;
use crate::index::{Key, take_effect};
use crate::options::Options;
use crate::queue::{Job, Reply};
use crate::record::{Intent, Outcome, Record};
use crate::refusal::Refusal;
use crate::segment::{self, file_name};
use crate::shared::Shared;

pub(crate) struct Writer {
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) segments: Segments,
    current: Option<Current>,
    next_sequence: u64,
    /// Segments of which the next has to say where they ended.
    unended: Vec<(u64, u64)>,
    /// Records with which the next segment begins, because the one before may have lost them.
    owed: Vec<Record>,
    options: Options,
    retry_at_micros: u64,
}

/// The segment that is written.
struct Current {
    sequence: u64,
    file: Box<dyn Append>,
    written: u64,
    /// Up to here it is on the disk.
    synced: u64,
    next_number: u32,
    /// What was written since, without intents: whoever waits for one is told that it failed.
    unsynced: Vec<Record>,
}

/// What the start found, for the first segment.
#[derive(Default)]
pub(crate) struct Inherited {
    pub(crate) segments: Segments,
    pub(crate) next_sequence: u64,
    pub(crate) unended: Vec<(u64, u64)>,
    pub(crate) owed: Vec<Record>,
}

/// A batch, sorted by who waits for it.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    intents: Vec<(Key, Reply)>,
    resolutions: Vec<(Record, Reply)>,
}

impl Writer {
    /// Begins with a segment of its own, or with refusing when the disk takes none: what was read is served all the same.
    pub(crate) fn start(
        disk: Box<dyn Disk>,
        shared: Arc<Shared>,
        options: Options,
        inherited: Inherited,
    ) -> Self {
        let Inherited { segments, next_sequence, unended, owed } = inherited;
        let mut writer = Self {
            disk,
            shared,
            segments,
            current: None,
            next_sequence,
            unended,
            owed,
            options,
            retry_at_micros: 0,
        };
        writer.begin_or_refuse();
        writer
    }

    /// Writes all of the jobs and tells who waits for them.
    pub(crate) fn write(&mut self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let batch = self.batch(jobs);
        if self.current.is_none() {
            let why = self.refusal();
            self.refuse(batch, &why);
            return;
        }
        match self.append(&batch) {
            Ok(()) => self.acknowledge(batch),
            Err(error) => {
                let why = self.fail(&error);
                self.refuse(batch, &why);
            }
        }
        if self.current.as_ref().is_some_and(|current| current.written >= self.options.segment_bytes) {
            self.roll();
        }
    }

    fn batch(&self, jobs: Vec<Job>) -> Batch {
        let mut batch = Batch::default();
        for job in jobs {
            match job {
                Job::Intent { intent, at_ms, serial, reply } => {
                    let key = Key { id: intent.id, n: intent.n, serial };
                    batch.records.push(Record::Intent(intent, at_ms));
                    batch.intents.push((key, reply));
                }
                Job::Outcome(record) => batch.records.push(record),
                Job::Resolution { record, reply } => {
                    batch.records.push(record.clone());
                    batch.resolutions.push((record, reply));
                }
            }
        }
        batch
    }

    fn append(&mut self, batch: &Batch) -> io::Result<()> {
        self.shared.metrics.batch_records.observe(batch.records.len() as f64);
        let Some(current) = &mut self.current else { return Ok(()) };
        current.append(&batch.records)?;
        if batch.intents.is_empty() && batch.resolutions.is_empty() {
            // Nobody waits for outcomes; they are synced with the next intent, or within a second.
            current.unsynced.extend_from_slice(&batch.records);
            return Ok(());
        }
        self.sync()
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let before = self.shared.time.micros();
        current.file.sync()?;
        let micros = self.shared.time.micros().saturating_sub(before);
        self.shared.metrics.sync_seconds.observe(micros as f64 / 1e6);
        current.synced = current.written;
        current.unsynced.clear();
        self.segments.grow(current.sequence, current.written, self.shared.time.now_ms());
        Ok(())
    }

    fn acknowledge(&self, batch: Batch) {
        self.shared.metrics.intents.inc_by(batch.intents.len() as u64);
        for (record, reply) in batch.resolutions {
            take_effect(&self.shared.index, &record);
            // Who no longer waits finds it resolved.
            let _ = reply.send(Ok(()));
        }
        for (_, reply) in batch.intents {
            // Whoever no longer waits has written that it was not sent.
            let _ = reply.send(Ok(()));
        }
    }

    /// Tells all who wait that nothing of theirs counts, and takes back in the next segment what may have reached the disk.
    fn refuse(&mut self, batch: Batch, why: &Refusal) {
        let at_ms = self.shared.time.now_ms();
        self.owed.extend(batch.records.into_iter().filter_map(|record| match record {
            Record::Intent(Intent { id, n, .. }, _) => {
                Some(Record::Outcome { id, n, at_ms, outcome: Outcome::NotSent })
            }
            // Who resolves it is told that it failed, and may try again.
            Record::Resolution { .. } => None,
            other => Some(other),
        }));
        for (key, reply) in batch.intents {
            self.shared.index.end(key, Outcome::NotSent, at_ms, || ());
            let _ = reply.send(Err(why.clone()));
        }
        for (_, reply) in batch.resolutions {
            let _ = reply.send(Err(why.clone()));
        }
    }

    fn refusal(&self) -> Refusal {
        self.shared.accepting.check().err().unwrap_or_else(|| Refusal::Disk("no segment".into()))
    }

    /// Gives the segment up. Neither its write nor its sync is tried again, because the kernel reports a page that it
    /// could not write once and then takes it for written.
    fn fail(&mut self, error: &io::Error) -> Refusal {
        let why = Refusal::Disk(error.to_string().into());
        if let Some(current) = self.current.take() {
            self.unended.push((current.sequence, current.synced));
            self.owed.extend(current.unsynced);
        }
        self.refuse_for_now(&why);
        why
    }

    fn refuse_for_now(&mut self, why: &Refusal) {
        self.shared.metrics.failures.inc();
        self.shared.accept(Some(why));
        let retry = u64::try_from(self.options.retry.as_micros()).unwrap_or(u64::MAX);
        self.retry_at_micros = self.shared.time.micros().saturating_add(retry);
    }

    fn begin_or_refuse(&mut self) {
        match self.begin() {
            Ok(()) => self.look_at_space(),
            Err(error) => self.refuse_for_now(&Refusal::Disk(error.to_string().into())),
        }
    }

    /// Makes a new segment, which begins with what former ones left to be said, and uses it once all of that is on the
    /// disk.
    fn begin(&mut self) -> io::Result<()> {
        let sequence = self.next_sequence;
        let name = file_name(sequence);
        let file = match self.disk.create(&name) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() == io::ErrorKind::AlreadyExists {
                    self.next_sequence += 1;
                }
                return Err(error);
            }
        };
        let (oldest, created_ms) = (self.segments.oldest(sequence), self.shared.time.now_ms());
        let mut current =
            Current { sequence, file, written: 0, synced: 0, next_number: 0, unsynced: Vec::new() };
        let ended = self.unended.iter().map(|&(segment, trusted_to)| Record::Ended { segment, trusted_to });
        let records: Vec<_> = ended.chain(self.owed.iter().cloned()).collect();
        let header = Header { sequence, oldest, created_ms };
        let bytes = segment::encode(&header, &records, &mut current.next_number);
        let begun = write_all(&mut *current.file, &bytes)
            .and_then(|()| current.file.sync())
            .and_then(|()| self.disk.sync_folder());
        if let Err(error) = begun {
            // Nothing in it was ever relied on. One that cannot be removed keeps its number.
            if self.disk.remove(&name).is_err() {
                self.unended.push((sequence, 0));
                self.next_sequence += 1;
            }
            return Err(error);
        }
        current.written = bytes.len() as u64;
        current.synced = current.written;
        self.segments.grow(sequence, current.written, created_ms);
        self.segments.report(&self.shared.metrics);
        self.shared.set_segment(sequence);
        self.next_sequence = sequence + 1;
        self.unended.clear();
        self.owed.clear();
        self.current = Some(current);
        Ok(())
    }

    /// Goes on in a new segment, and seals the old one once the new one is there, so that the seal can say so.
    fn roll(&mut self) {
        if let Err(error) = self.sync() {
            self.fail(&error);
            return;
        }
        let Some(mut full) = self.current.take() else { return };
        self.unended.push((full.sequence, full.synced));
        if let Err(error) = self.begin() {
            self.fail(&error);
            return;
        }
        let seal = Record::Seal { at_ms: self.shared.time.now_ms(), successor: true };
        if let Err(error) = full.append(&[seal]).and_then(|()| full.file.sync()) {
            // The new segment says where it ended; the seal only says it again.
            tracing::warn!(segment = full.sequence, %error, "a segment could not be sealed");
        }
        self.segments.grow(full.sequence, full.written, 0);
    }

    /// What is to be done once a second, whether or not there are jobs.
    pub(crate) fn tick(&mut self) {
        let now_ms = self.shared.time.now_ms();
        self.shared.index.expire(now_ms);
        if self.current.is_none() {
            if self.shared.time.micros() >= self.retry_at_micros {
                self.begin_or_refuse();
            }
            return;
        }
        if self.current.as_ref().is_some_and(|current| current.written > current.synced)
            && let Err(error) = self.sync()
        {
            self.fail(&error);
            return;
        }
        self.look_at_space();
        self.compact();
        self.segments.report(&self.shared.metrics);
    }

    /// Refuses before the disk is full, so that the outcomes of what is under way still find room.
    fn look_at_space(&mut self) {
        // A file system that does not tell is written until it fails.
        let low = self.disk.space().ok().and_then(|Space { free, total }| {
            let reserve = self.options.reserve_bytes.min(total / 100);
            (free < reserve).then_some(Refusal::DiskLow { free, reserve })
        });
        self.shared.accept(low.as_ref());
    }

    /// The segment that is written, if there is one.
    pub(crate) fn current_segment(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.sequence)
    }

    /// Writes records of the ledger's own and waits for the disk; false when it failed, which is dealt with.
    pub(crate) fn write_own(&mut self, records: &[Record]) -> bool {
        let Some(current) = &mut self.current else { return false };
        match current.append(records).and_then(|()| self.sync()) {
            Ok(()) => true,
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    /// Ends in order: what was written is synced, and sealed.
    pub(crate) fn close(&mut self) {
        self.shared.accepting.set(Some(Refusal::Closed));
        if self.current.is_none() && !self.owed.is_empty() {
            // The last chance for outcomes; without it they are read as unknown.
            let _ = self.begin();
        }
        let seal = Record::Seal { at_ms: self.shared.time.now_ms(), successor: false };
        if self.write_own(&[seal]) {
            self.current = None;
        }
    }
}

impl Current {
    fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(records.len() * 64);
        segment::append(&mut bytes, self.sequence, records, &mut self.next_number);
        write_all(&mut *self.file, &bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}
