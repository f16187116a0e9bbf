//! The restart budget of one rule on one worker thread: a token bucket that follows how much the rule carries, so that
//! a failing cell cannot multiply the load on its siblings.

/// Thousandths of a token that a completed transaction brings back.
const REFILL: u64 = 200;
const TOKEN: u64 = 1_000;
/// Tokens that a rule has however little it carries.
const LEAST: u64 = 10;
/// Seconds of what the rule carries that may start over at once: as long as a cell that fails can take until it is out,
/// when its node dies without a word.
const SPAN: usize = 3;

#[derive(Debug)]
pub struct Budget {
    thousandths: u64,
    in_flight: u64,
    /// Transactions ended in each of the last seconds, by the second's remainder.
    ended: [u64; SPAN],
    second: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { thousandths: LEAST * TOKEN, in_flight: 0, ended: [0; SPAN], second: 0 }
    }
}

impl Budget {
    pub fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// A transaction ended, whatever came of it.
    pub fn end(&mut self, now_ms: u64) {
        self.pass(now_ms / 1_000);
        self.ended[self.second as usize % SPAN] += 1;
        // The bucket's size is what the rule carries with this one, or has carried of late.
        let size = self.in_flight.max(self.ended.iter().sum()).max(LEAST) * TOKEN;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.thousandths = (self.thousandths + REFILL).min(size);
    }

    fn pass(&mut self, second: u64) {
        let passed = second.saturating_sub(self.second).min(SPAN as u64);
        for later in 1..=passed {
            self.ended[(second - passed + later) as usize % SPAN] = 0;
        }
        self.second = self.second.max(second);
    }

    pub fn has_token(&self) -> bool {
        self.thousandths >= TOKEN
    }

    /// Takes a token for another attempt.
    pub fn take(&mut self) {
        self.thousandths = self.thousandths.saturating_sub(TOKEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_rule_has_ten_restarts_and_then_one_in_five() {
        let mut budget = Budget::default();
        for _ in 0..LEAST {
            assert!(budget.has_token());
            budget.take();
        }
        assert!(!budget.has_token());
        for _ in 0..5 {
            assert!(!budget.has_token());
            budget.begin();
            budget.end(0);
        }
        assert!(budget.has_token());
    }

    #[test]
    fn a_busy_rule_saves_up_as_many_as_it_carries() {
        let mut budget = Budget::default();
        for _ in 0..100 {
            budget.begin();
        }
        for now in 0..1_000 {
            budget.begin();
            // One each second, so that it is what is under way that counts.
            budget.end(now * 1_000);
        }
        assert!(budget.thousandths > 99 * TOKEN && budget.thousandths <= 101 * TOKEN);
    }

    #[test]
    fn what_a_cell_fails_within_seconds_may_all_start_over() {
        let mut budget = Budget::default();
        // Two hundred each second, one at a time.
        for number in 0..10_000 {
            budget.begin();
            budget.end(number * 5);
        }
        let mut restarts = 0;
        while budget.has_token() {
            budget.take();
            restarts += 1;
        }
        assert!((400..=600).contains(&restarts), "{restarts}");
        // A rule that carries nothing for a while has what a quiet one has.
        budget.begin();
        budget.end(90_000);
        assert_eq!(budget.ended.iter().sum::<u64>(), 1, "{budget:?}");
    }
}
