//! What a client's frames cost that carry nothing, counted as they arrive: those are cheap to send and not to read, and flow
//! control does not hold them (RFC 9113, section 10.5). Pure; it knows frames by their heads alone.

use super::PREFACE;

/// Frames that carry nothing: so many at once, and so many more a second.
const CONTROL: Allowance = Allowance::new(1000, 100);
/// More of them for each stream that is opened, and for each frame of an answer, which its client acknowledges.
const FOR_A_STREAM: u32 = 4;
const FOR_A_FRAME: u32 = 10;
/// Streams that the client takes back: so many at once, and so many more a second. One more for each that is answered.
const RESETS: Allowance = Allowance::new(200, 50);

/// Bytes of a frame before its payload.
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// What a client does too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flood {
    /// Streams opened and taken back (CVE-2023-44487).
    Resets,
    /// SETTINGS, PING, PRIORITY, WINDOW_UPDATE, CONTINUATION and DATA without data (CVE-2019-9511 to 9518, CVE-2024-27316).
    Control,
}

/// The state of one connection's inbound side.
pub(super) struct Meter {
    /// Bytes of the preface that are still to come.
    preface: usize,
    head: [u8; FRAME_HEAD],
    /// Bytes of it that are there.
    known: usize,
    /// Bytes of the payload that are still to come.
    left: usize,
    /// Within the fields of one head, from its first byte to its last.
    in_head: bool,
    control: Allowance,
    resets: Allowance,
}

impl Meter {
    pub(super) const fn new() -> Self {
        Self {
            preface: PREFACE.len(),
            head: [0; FRAME_HEAD],
            known: 0,
            left: 0,
            in_head: false,
            control: CONTROL,
            resets: RESETS,
        }
    }

    /// Takes what arrived at that time, in milliseconds.
    ///
    /// # Errors
    /// What there is too much of.
    pub(super) fn feed(&mut self, mut bytes: &[u8], now_ms: u64) -> Result<(), Flood> {
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        bytes = &bytes[preface..];
        let mut metered = Ok(());
        while !bytes.is_empty() {
            let payload = self.left.min(bytes.len());
            self.left -= payload;
            bytes = &bytes[payload..];
            if self.left > 0 {
                break;
            }
            if self.known == FRAME_HEAD {
                self.ends_frame();
            }
            let length = (FRAME_HEAD - self.known).min(bytes.len());
            self.head[self.known..self.known + length].copy_from_slice(&bytes[..length]);
            self.known += length;
            bytes = &bytes[length..];
            if self.known == FRAME_HEAD {
                metered = metered.and(self.begins_frame(now_ms));
            }
        }
        if self.left == 0 && self.known == FRAME_HEAD {
            self.ends_frame();
        }
        metered
    }

    fn begins_frame(&mut self, now_ms: u64) -> Result<(), Flood> {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
        match kind {
            HEADERS => {
                self.in_head = true;
                self.control.give(FOR_A_STREAM);
                Ok(())
            }
            DATA if self.left > 0 || flags & END_STREAM != 0 => Ok(()),
            RST_STREAM => self.resets.take(now_ms).then_some(()).ok_or(Flood::Resets),
            _ => self.control.take(now_ms).then_some(()).ok_or(Flood::Control),
        }
    }

    fn ends_frame(&mut self) {
        let [.., kind, flags, _, _, _, _] = self.head;
        if matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0 {
            self.in_head = false;
        }
        self.known = 0;
    }

    /// Whether part of the preface or of a request's head has arrived, and the rest has not.
    pub(super) fn is_in_head(&self) -> bool {
        self.in_head || self.preface > 0
    }

    /// A request was answered whole.
    pub(super) fn answered(&mut self) {
        self.resets.give(1);
    }

    /// So many bytes of an answer go out.
    pub(super) fn sends(&mut self, bytes: usize) {
        const FRAME: usize = 16 * 1024;
        let frames = u32::try_from(bytes / FRAME + 1).unwrap_or(u32::MAX);
        self.control.give(frames.saturating_mul(FOR_A_FRAME));
    }
}

/// What there may be of something: a store that fills again with time.
#[derive(Clone, Copy)]
struct Allowance {
    left: u32,
    most: u32,
    per_second: u32,
    filled_ms: u64,
}

impl Allowance {
    const fn new(most: u32, per_second: u32) -> Self {
        Self { left: most, most, per_second, filled_ms: 0 }
    }

    fn give(&mut self, more: u32) {
        self.left = self.left.saturating_add(more).min(self.most);
    }

    /// Whether there was one.
    fn take(&mut self, now_ms: u64) -> bool {
        let passed = now_ms.saturating_sub(self.filled_ms);
        let more = passed * u64::from(self.per_second) / 1000;
        if more > 0 {
            self.give(u32::try_from(more).unwrap_or(u32::MAX));
            self.filled_ms = now_ms;
        }
        let any = self.left > 0;
        self.left = self.left.saturating_sub(1);
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: u8 = 4;
    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let [_, high, middle, low] = u32::try_from(length).expect("fits").to_be_bytes();
        [&[high, middle, low, kind, flags, 0, 0, 0, 1][..], &vec![7; length]].concat()
    }

    fn begun() -> Meter {
        let mut meter = Meter::new();
        meter.feed(PREFACE, 0).expect("is no flood");
        meter
    }

    /// How many of these frames pass at once.
    fn most(frame: &[u8]) -> usize {
        let mut meter = begun();
        (0..100_000).take_while(|_| meter.feed(frame, 0).is_ok()).count()
    }

    #[test]
    fn what_carries_nothing_is_counted_and_what_carries_something_is_not() {
        assert_eq!(most(&frame(SETTINGS, 0, 0)), 1000);
        assert_eq!(most(&frame(PING, 0, 8)), 1000);
        assert_eq!(most(&frame(DATA, 0, 0)), 1000);
        assert_eq!(most(&frame(CONTINUATION, 0, 0)), 1000);
        assert_eq!(most(&frame(250, 0, 20_000)), 1000);
        assert_eq!(most(&frame(RST_STREAM, 0, 4)), 200);
        for busy in [frame(DATA, 0, 1), frame(DATA, END_STREAM, 0), frame(HEADERS, END_HEADERS, 30)] {
            assert_eq!(most(&busy), 100_000);
        }
    }

    #[test]
    fn frames_are_told_apart_wherever_they_are_cut() {
        let all =
            [PREFACE, &frame(HEADERS, 0, 5), &frame(CONTINUATION, END_HEADERS, 3), &frame(RST_STREAM, 0, 4)];
        let all = all.concat();
        for cut in 1..all.len() {
            let mut meter = Meter::new();
            let mut heads = 0;
            for part in [&all[..cut], &all[cut..]].into_iter().flat_map(|half| half.chunks(cut)) {
                meter.feed(part, 0).expect("is no flood");
                heads += u32::from(meter.is_in_head());
            }
            assert!(!meter.is_in_head() && meter.resets.left == RESETS.most - 1, "cut at {cut}, {heads}");
        }
    }

    #[test]
    fn a_head_is_one_from_its_first_byte_to_its_last() {
        let mut meter = Meter::new();
        assert!(meter.is_in_head());
        let mut feed = |bytes: &[u8]| {
            meter.feed(bytes, 0).expect("is no flood");
            meter.is_in_head()
        };
        assert!(feed(&PREFACE[..23]) && !feed(&PREFACE[23..]));
        let (head, rest) = (frame(HEADERS, 0, 5), frame(CONTINUATION, END_HEADERS, 5));
        assert!(!feed(&head[..8]) && feed(&head[8..9]) && feed(&head[9..]));
        assert!(feed(&rest[..13]) && !feed(&rest[13..]));
        assert!(!feed(&frame(HEADERS, END_HEADERS, 0)));
    }

    #[test]
    fn time_answers_and_streams_allow_for_more() {
        let drained = || {
            let mut meter = begun();
            while meter.feed(&frame(PING, 0, 8), 0).is_ok() {}
            while meter.feed(&frame(RST_STREAM, 0, 4), 0).is_ok() {}
            meter
        };
        let more = |meter: &mut Meter, frame: &[u8], now| {
            (0..10_000).take_while(|_| meter.feed(frame, now).is_ok()).count()
        };
        let mut meter = drained();
        assert_eq!(more(&mut meter, &frame(PING, 0, 8), 1000), 100);
        assert_eq!(more(&mut meter, &frame(RST_STREAM, 0, 4), 1000), 50);
        assert_eq!(more(&mut meter, &frame(PING, 0, 8), 1_000_000), 1000);
        let mut meter = drained();
        meter.sends(40_000);
        meter.answered();
        assert_eq!(more(&mut meter, &frame(PING, 0, 8), 0), 30);
        assert_eq!(more(&mut meter, &frame(RST_STREAM, 0, 4), 0), 1);
        meter.feed(&frame(HEADERS, END_HEADERS, 1), 0).expect("is no flood");
        assert_eq!(more(&mut meter, &frame(PING, 0, 8), 0), 4);
    }
}
