//! What a while of load came to. Pure.

use bulkhead_samples::load::histogram::Histogram;

use super::clients::{CELLS, Tally};
use crate::lab::kernel::Cpu;

#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) micros: u64,
    /// What was answered in it, of each cell.
    pub(super) within: [Tally; CELLS],
    /// With what came of requests that were under way at its end.
    pub(super) whole: [Tally; CELLS],
    pub(super) proxy: Cpu,
    /// Microseconds of CPU that neither the proxy nor this process had.
    pub(super) foreign: u64,
    /// Bytes of the proxy in memory at most.
    pub(super) peak: u64,
}

impl Window {
    /// Answers within the bound.
    pub(super) fn goodput(&self) -> f64 {
        self.per_second(|tally| tally.good)
    }

    pub(super) fn refused(&self) -> f64 {
        self.per_second(|tally| tally.refused)
    }

    /// Requests that clients kept to themselves.
    pub(super) fn held_back(&self) -> f64 {
        self.per_second(|tally| tally.held_back)
    }

    pub(super) fn late(&self) -> f64 {
        self.per_second(|tally| tally.late)
    }

    fn per_second(&self, of: impl Fn(&Tally) -> u64) -> f64 {
        self.within.iter().map(of).sum::<u64>() as f64 * 1e6 / self.micros.max(1) as f64
    }

    /// Requests answered with neither 200 nor a refusal, or not at all.
    pub(super) fn failed(&self) -> u64 {
        self.whole.iter().map(|tally| tally.failed).sum()
    }

    /// Milliseconds to answers of a cell at that quantile; of several, those of the slowest.
    pub(super) fn answered_ms(&self, cells: &[usize], of: f64) -> f64 {
        self.slowest(cells, of, |tally| &tally.latencies)
    }

    pub(super) fn refused_ms(&self, cells: &[usize], of: f64) -> f64 {
        self.slowest(cells, of, |tally| &tally.refusals)
    }

    fn slowest(&self, cells: &[usize], of: f64, histogram: impl Fn(&Tally) -> &Histogram) -> f64 {
        let each = cells.iter().map(|cell| histogram(&self.whole[*cell]).quantile(of));
        each.max().unwrap_or(0) as f64 / 1_000.0
    }

    /// How busy the proxy kept its core.
    pub(super) fn core(&self) -> f64 {
        self.proxy.sum() as f64 / self.micros.max(1) as f64
    }

    pub(super) fn foreign_cores(&self) -> f64 {
        self.foreign as f64 / self.micros.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_cells_and_latencies_of_the_slowest() {
        let tally = |micros| {
            let mut tally = Tally { good: 10, late: 2, refused: 1, failed: 3, ..Tally::default() };
            tally.latencies.record(micros);
            tally
        };
        let whole = [tally(100), tally(50_000)];
        let window = Window { micros: 500_000, within: whole.clone(), whole, ..Window::default() };
        assert_eq!([window.goodput(), window.late(), window.refused()], [40.0, 8.0, 4.0]);
        assert_eq!(window.failed(), 6);
        let [first, both] = [&[0][..], &[0, 1]].map(|cells| window.answered_ms(cells, 0.99));
        assert!(first < 1.0 && (49.0..55.0).contains(&both), "{first} {both}");
    }
}
