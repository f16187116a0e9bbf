//! The registry of a process and its text form. What is counted is said where it happens, not here.

use prometheus::{Encoder, Registry, TextEncoder};

/// Content type of the text form.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// The metrics in Prometheus' text form. A collector that fails leaves the rest out and is logged.
pub fn encode(registry: &Registry) -> String {
    let mut buffer = Vec::new();
    if let Err(error) = TextEncoder::new().encode(&registry.gather(), &mut buffer) {
        tracing::warn!(%error, "some metrics could not be encoded");
    }
    String::from_utf8_lossy(&buffer).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_shows_with_its_name_and_value() {
        let registry = Registry::new();
        let counter = prometheus::IntCounter::new("bulkhead_test_total", "A test.").expect("a valid name");
        registry.register(Box::new(counter.clone())).expect("the first of its name");
        counter.inc_by(3);
        assert!(encode(&registry).contains("bulkhead_test_total 3\n"));
    }
}
