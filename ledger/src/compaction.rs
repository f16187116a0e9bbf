//! Which old segments are no longer needed, and how they go: what still matters in them is first written to the newest,
//! with a record that they go, and only then they are deleted. Damaged ones are put aside instead.

use std::collections::BTreeMap;

use crate::history::Segment;
use crate::metrics::Metrics;
use crate::record::Record;
use crate::segment::{ASIDE, file_name};
use crate::writer::Writer;

/// The segments on the disk.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    known: BTreeMap<u64, Segment>,
    /// Until then the oldest is needed for certain, so that nobody has to look.
    needed_until_ms: u64,
    /// All below were deleted.
    oldest: u64,
}

impl Segments {
    pub(crate) fn new(known: BTreeMap<u64, Segment>, oldest: u64) -> Self {
        Self { known, needed_until_ms: 0, oldest }
    }

    /// The lowest that must be there, for the header of a new one.
    pub(crate) fn oldest(&self, new: u64) -> u64 {
        if self.oldest == 0 { new } else { self.oldest }
    }

    pub(crate) fn grow(&mut self, sequence: u64, bytes: u64, at_ms: u64) {
        if self.oldest == 0 {
            self.oldest = sequence;
        }
        let segment = self.known.entry(sequence).or_default();
        segment.bytes = bytes;
        segment.newest_ms = segment.newest_ms.max(at_ms);
    }

    pub(crate) fn report(&self, metrics: &Metrics) {
        let bytes: u64 = self.known.values().map(|segment| segment.bytes).sum();
        metrics.segments.set(i64::try_from(self.known.len()).unwrap_or(i64::MAX));
        metrics.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// The oldest segment, if it is not the one that is written and all in it is older than the window.
    fn over(&self, current: u64, now_ms: u64, window_ms: u64) -> Option<(u64, Segment)> {
        if now_ms < self.needed_until_ms {
            return None;
        }
        let (&sequence, segment) = self.known.first_key_value()?;
        let over = segment.newest_ms.saturating_add(window_ms) <= now_ms;
        (sequence < current && over).then_some((sequence, *segment))
    }
}

impl Writer {
    /// Lets at most one segment go, so that writing never waits for many.
    pub(crate) fn compact(&mut self) {
        let Some(current) = self.current_segment() else { return };
        let now_ms = self.shared.time.now_ms();
        let window_ms = self.shared.index.window_ms();
        let Some((through, segment)) = self.segments.over(current, now_ms, window_ms) else { return };
        let residents = self.shared.index.residents(through);
        if let Some(until_ms) = residents.decided_until_ms {
            self.segments.needed_until_ms = until_ms;
            return;
        }
        let mut records: Vec<_> =
            residents.to_carry.iter().flat_map(|(id, effect)| effect.records(*id)).collect();
        records.push(Record::Compacted { through });
        if !self.write_own(&records) {
            return;
        }
        for (id, effect) in &residents.to_carry {
            self.shared.index.carried(id, effect.n, current);
        }
        self.segments.oldest = through + 1;
        self.segments.known.remove(&through);
        self.take_away(through, segment.damaged);
    }

    /// A file that stays although it is no longer needed is read again at the next start and goes then.
    fn take_away(&self, sequence: u64, damaged: bool) {
        let name = file_name(sequence);
        let gone =
            if damaged { self.disk.rename(&name, &(name.clone() + ASIDE)) } else { self.disk.remove(&name) };
        match gone.and_then(|()| self.disk.sync_folder()) {
            Ok(()) if damaged => tracing::warn!(segment = sequence, "a damaged segment was put aside"),
            Ok(()) => tracing::debug!(segment = sequence, "a segment was compacted"),
            Err(error) => tracing::warn!(segment = sequence, %error, "an old segment cannot be taken away"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(newest_ms: &[u64], now_ms: u64, expected: Option<u64>) {
        let mut segments = Segments::default();
        for (sequence, at_ms) in (1..).zip(newest_ms) {
            segments.grow(sequence, 1, *at_ms);
        }
        let over = segments.over(newest_ms.len() as u64, now_ms, 100);
        assert_eq!(over.map(|(sequence, _)| sequence), expected, "{newest_ms:?} at {now_ms}");
    }

    #[test]
    fn the_oldest_segment_goes_once_all_in_it_is_older_than_the_window() {
        check(&[10, 20], 109, None);
        check(&[10, 20], 110, Some(1));
        check(&[10], 500, None);
        check(&[], 500, None);
    }
}
