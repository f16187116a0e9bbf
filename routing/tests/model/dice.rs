//! The chance of one run: a generator whose every draw follows from the seed. Nothing else in the model is random.

use std::cell::Cell;
use std::ops::RangeInclusive;

pub(crate) struct Dice(Cell<u64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014): neighbouring seeds give runs that have nothing in common.
    fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("is below a usize")
    }

    pub(crate) fn between(&self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.next() % (range.end() - range.start() + 1)
    }

    pub(crate) fn chance(&self, per_mille: u64) -> bool {
        self.next() % 1_000 < per_mille
    }

    pub(crate) fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
