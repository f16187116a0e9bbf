//! Finding the rule of a request.

use bulkhead_protocol::Reason;

use super::Refusal;
use crate::request::{self, RequestView};
use crate::table::{Rule, Table};

/// The first rule of the listener that matches.
///
/// # Errors
/// `NoRule` when none matches; `Malformed` when a rule that could match needs the body, and that is no JSON.
pub fn match_rule<'t>(
    table: &'t Table,
    listener: &str,
    view: &impl RequestView,
) -> Result<&'t Rule, Refusal> {
    let Some(listener) = table.listener(listener) else {
        return Err(Refusal::new(Reason::NoRule, format!("the table has no listener {listener:?}")));
    };
    for arm in &listener.arms {
        let mut holds = true;
        for condition in &arm.conditions {
            holds = holds && condition.holds(request::read(&condition.source, view)?.as_ref());
        }
        if holds {
            return Ok(&table.rules[arm.rule as usize]);
        }
    }
    Err(Refusal::new(Reason::NoRule, format!("no rule of listener {:?} matches", listener.name)))
}
