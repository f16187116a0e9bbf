//! The restart budget of one rule on one worker thread: a token bucket that follows how much the rule carries, so that
//! a failing cell cannot multiply the load on its siblings.

/// Thousandths of a token that a completed transaction brings back.
const REFILL: u64 = 200;
const TOKEN: u64 = 1_000;
/// Tokens that a rule has however little it carries.
const LEAST: u64 = 10;

#[derive(Debug)]
pub struct Budget {
    thousandths: u64,
    in_flight: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { thousandths: LEAST * TOKEN, in_flight: 0 }
    }
}

impl Budget {
    pub fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// A transaction ended, whatever came of it.
    pub fn end(&mut self) {
        // The bucket's size is what the rule carried with this one.
        let size = self.in_flight.max(LEAST) * TOKEN;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.thousandths = (self.thousandths + REFILL).min(size);
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
            budget.end();
        }
        assert!(budget.has_token());
    }

    #[test]
    fn a_busy_rule_saves_up_as_many_as_it_carries() {
        let mut budget = Budget::default();
        for _ in 0..100 {
            budget.begin();
        }
        for _ in 0..1_000 {
            budget.begin();
            budget.end();
        }
        assert!(budget.thousandths > 99 * TOKEN && budget.thousandths <= 101 * TOKEN);
    }
}
