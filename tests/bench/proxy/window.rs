//! What a while of load came to. Pure.

use bulkhead_samples::load::histogram::Histogram;

use crate::lab::kernel::Cpu;

/// Counters at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) micros: u64,
    pub(crate) answered: u64,
    pub(crate) by_cell: Vec<u64>,
    pub(crate) proxy: Cpu,
    /// CPU of this process: clients and cells.
    pub(crate) this: u64,
    /// CPU that anybody had.
    pub(crate) machine: u64,
}

/// All of it is of the same while.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    pub(crate) micros: u64,
    /// That were answered in it.
    pub(crate) requests: u64,
    pub(crate) proxy: Cpu,
    pub(crate) this: u64,
    /// CPU that neither the proxy nor this process had.
    pub(crate) foreign: u64,
    /// Of requests that came in it, from the moment at which they should have been sent.
    pub(crate) latencies: Histogram,
    /// That came in it and had no answer long after it.
    pub(crate) unanswered: u64,
    /// Bytes of the proxy in memory at the end, and at most.
    pub(crate) resident: u64,
    pub(crate) peak: u64,
    /// Of the requests, how many the first cell got: with TLS or without, cells take turns.
    pub(crate) share_of_first: f64,
}

impl Window {
    pub(crate) fn between(
        before: &Reading,
        after: &Reading,
        latencies: Histogram,
        unanswered: u64,
        [resident, peak]: [u64; 2],
    ) -> Self {
        let proxy = after.proxy.since(before.proxy);
        let this = after.this.saturating_sub(before.this);
        let reached: Vec<_> =
            after.by_cell.iter().zip(&before.by_cell).map(|(after, before)| after - before).collect();
        let all = reached.iter().sum::<u64>().max(1);
        Self {
            micros: after.micros - before.micros,
            requests: after.answered - before.answered,
            proxy,
            this,
            // Ticks are counted at different moments, so that nothing may come out below nothing.
            foreign: (after.machine.saturating_sub(before.machine)).saturating_sub(proxy.sum() + this),
            latencies,
            unanswered,
            resident,
            peak,
            share_of_first: reached.iter().step_by(2).sum::<u64>() as f64 / all as f64,
        }
    }

    /// Microseconds of the proxy's CPU.
    pub(crate) fn cpu_per_request(&self) -> f64 {
        self.per_request(self.proxy.sum())
    }

    pub(crate) fn user_per_request(&self) -> f64 {
        self.per_request(self.proxy.user)
    }

    pub(crate) fn system_per_request(&self) -> f64 {
        self.per_request(self.proxy.system)
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.requests as f64 * 1e6 / self.micros.max(1) as f64
    }

    /// How busy the proxy kept its core.
    pub(crate) fn core(&self) -> f64 {
        self.cores(self.proxy.sum())
    }

    /// How busy clients and cells kept theirs.
    pub(crate) fn load_core(&self) -> f64 {
        self.cores(self.this)
    }

    /// Cores that somebody else kept busy.
    pub(crate) fn foreign_cores(&self) -> f64 {
        self.cores(self.foreign)
    }

    pub(crate) fn quantile(&self, of: f64) -> f64 {
        self.latencies.quantile(of) as f64
    }

    fn per_request(&self, micros: u64) -> f64 {
        micros as f64 / self.requests.max(1) as f64
    }

    fn cores(&self, micros: u64) -> f64 {
        micros as f64 / self.micros.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_between_two_moments() {
        let before = Reading { by_cell: vec![10, 10, 5, 5], ..Reading::default() };
        let after = Reading {
            micros: 1_000_000,
            answered: 10_000,
            by_cell: vec![7_010, 3_010, 5, 5],
            proxy: Cpu { user: 100_000, system: 400_000 },
            this: 300_000,
            machine: 900_000,
        };
        let window = Window::between(&before, &after, Histogram::default(), 0, [1, 2]);
        let each = [window.user_per_request(), window.system_per_request(), window.cpu_per_request()];
        assert_eq!(each, [10.0, 40.0, 50.0]);
        assert_eq!([window.core(), window.load_core(), window.foreign_cores()], [0.5, 0.3, 0.1]);
        assert_eq!((window.per_second(), window.share_of_first), (10_000.0, 0.7));
    }
}
