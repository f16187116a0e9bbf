//! A cell's workflow as it was configured: its stops in order, which services they need, and the version of contexts that
//! are written on the way. Pure; running it is the module above's.

use std::time::Duration;

use bulkhead_crds::template::Step;
use bulkhead_protocol::egress::MAX_EGRESSES;
use http::Uri;
use sha2::{Digest, Sha256};

use crate::config::Invalid;

/// How contexts are written. Another format is another version, which those who know only this one do not accept.
const FORMAT: &str = "steps1";

/// The stops of every transaction, in order. None where a cell has an entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Workflow {
    stops: Vec<Stop>,
    version: String,
}

/// Where a transaction stops on its way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Call {
        service: String,
        path: Uri,
        timeout: Duration,
    },
    /// Leaves the cell, and goes on at the next stop wherever it comes back.
    Egress {
        /// From 1, by the order of stops.
        number: u32,
        destination: String,
    },
}

impl Workflow {
    /// # Errors
    /// A step that names neither or both of service and destination, has no legal path, or is an egress too many.
    pub(crate) fn new(steps: &[Step]) -> Result<Self, Invalid> {
        let mut stops = Vec::with_capacity(steps.len());
        let mut egresses = 0;
        for (index, step) in steps.iter().enumerate() {
            stops.push(match (&step.service, &step.path, &step.destination) {
                (Some(service), Some(path), None) => Stop::Call {
                    service: service.clone(),
                    path: parse(path).ok_or_else(|| Invalid::Path(path.clone()))?,
                    timeout: step.timeout.get(),
                },
                (None, None, Some(destination)) => {
                    egresses += 1;
                    Stop::Egress { number: egresses, destination: destination.clone() }
                }
                _ => return Err(Invalid::Step(index + 1)),
            });
        }
        if egresses > MAX_EGRESSES {
            return Err(Invalid::TooManyEgresses(egresses));
        }
        Ok(Self { version: version(&stops), stops })
    }

    pub(crate) fn stops(&self) -> &[Stop] {
        &self.stops
    }

    /// What its contexts are marked with: whoever has the same can go on from them.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Whether transactions leave the cell on their way.
    pub(crate) fn has_egress(&self) -> bool {
        self.after(1).is_some()
    }

    /// The stop behind egress `number`; `None` where there is no such egress.
    pub(crate) fn after(&self, number: u32) -> Option<usize> {
        let egress = |stop: &Stop| matches!(stop, Stop::Egress { number: its, .. } if *its == number);
        self.stops.iter().position(egress).map(|index| index + 1)
    }

    /// Whether a transaction that is at stop `from` still needs the service: a stop to come calls it, or no stop at all
    /// does, so that it stands behind those that are called.
    pub(crate) fn needs(&self, service: &str, from: usize) -> bool {
        let calls = |stop: &Stop| matches!(stop, Stop::Call { service: its, .. } if its == service);
        self.stops[from..].iter().any(calls) || !self.stops[..from].iter().any(calls)
    }
}

fn parse(path: &str) -> Option<Uri> {
    path.parse().ok().filter(|uri: &Uri| path.starts_with('/') && uri.authority().is_none())
}

/// The same wherever services, paths and destinations are the same in the same order. Time-outs may differ.
fn version(stops: &[Stop]) -> String {
    let mut hash = Sha256::new();
    for stop in stops {
        let (kind, name, path) = match stop {
            Stop::Call { service, path, .. } => ("call", service, path.to_string()),
            Stop::Egress { destination, .. } => ("egress", destination, String::new()),
        };
        // Each behind its length, so that no two workflows are one text.
        for part in [kind, name, &path] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    let word = hash.finalize().iter().take(8).fold(String::new(), |word, byte| format!("{word}{byte:02x}"));
    format!("{FORMAT}-{word}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::args::parse_step;

    /// Steps as `--step` takes them.
    pub(crate) fn steps(texts: &[&str]) -> Vec<Step> {
        texts.iter().map(|text| parse_step(text).expect("a step")).collect()
    }

    fn workflow(texts: &[&str]) -> Workflow {
        Workflow::new(&steps(texts)).expect("is a workflow")
    }

    const PAYMENT: [&str; 5] =
        ["validate:/", "choose:/", "destination:visa", "check:/", "destination:ledger"];

    #[test]
    fn a_transaction_goes_on_behind_its_egress() {
        let payment = workflow(&PAYMENT);
        assert_eq!([0, 1, 2, 3].map(|number| payment.after(number)), [None, Some(3), Some(5), None]);
        assert!(payment.has_egress() && !workflow(&["validate:/"]).has_egress());
    }

    #[test]
    fn a_service_is_needed_until_its_last_call_and_one_behind_them_to_the_end() {
        let payment = workflow(&PAYMENT);
        let needed = |service: &str| (0..=5).map(|from| payment.needs(service, from)).collect::<Vec<_>>();
        assert_eq!(needed("validate"), [true, false, false, false, false, false]);
        assert_eq!(needed("check"), [true, true, true, true, false, false]);
        assert_eq!(needed("database"), [true; 6]);
        assert!(workflow(&[]).needs("web", 0), "an entry needs all");
    }

    #[test]
    fn the_version_changes_with_what_is_done_and_with_nothing_else() {
        let version = |texts: &[&str]| workflow(texts).version;
        let mut patient = steps(&PAYMENT);
        patient[0].timeout = bulkhead_crds::Duration::from_secs(60);
        assert_eq!(Workflow::new(&patient).expect("is a workflow").version, version(&PAYMENT));
        let others: [&[&str]; 4] = [
            &["choose:/", "validate:/", "destination:visa", "check:/", "destination:ledger"],
            &["validate:/", "choose:/", "destination:amex", "check:/", "destination:ledger"],
            &["validate:/", "choose:/2", "destination:visa", "check:/", "destination:ledger"],
            &["validate:/", "choose:/", "destination:visa", "check:/"],
        ];
        for other in others {
            assert_ne!(version(other), version(&PAYMENT), "{other:?}");
        }
    }

    /// The digest was made with sha256sum of the same bytes: a new release must go on from what an old one wrote.
    #[test]
    fn the_version_is_the_same_on_every_machine_and_in_every_release() {
        assert_eq!(workflow(&["a:/x", "destination:visa"]).version, "steps1-265b84f86ed8e193");
    }

    #[test]
    fn what_is_no_step_is_named() {
        let check = |steps: &[Step], invalid| assert_eq!(Workflow::new(steps), Err(invalid));
        let [call, egress] = ["a:/x", "destination:visa"].map(|text| steps(&[text]).remove(0));
        let at = |path: &str| Step { path: Some(path.to_owned()), ..call.clone() };
        check(&[call.clone(), Step::default()], Invalid::Step(2));
        check(&[Step { destination: egress.destination.clone(), ..call.clone() }], Invalid::Step(1));
        check(&[Step { path: None, ..call.clone() }], Invalid::Step(1));
        check(&[at("x")], Invalid::Path("x".to_owned()));
        check(&[at("/x y")], Invalid::Path("/x y".to_owned()));
        check(&vec![egress; 33], Invalid::TooManyEgresses(33));
    }
}
