//! Finding the rule of a request: what the head decides, and the body only where a rule before that depends on it.

use std::sync::Arc;

use bulkhead_protocol::Reason;

use super::Refusal;
use crate::request::{self, RequestView};
use crate::table::{Open, Rule, Table, TableListener};

/// The first rule of the listener that matches. The body is asked for only where the rule depends on it.
///
/// # Errors
/// `NoRule` when none matches; `Malformed` when a rule that could match needs the body, and that is no JSON: such a
/// request never falls through to a rule that does not look.
pub fn match_rule<'t>(
    table: &'t Table,
    listener: &str,
    view: &impl RequestView,
) -> Result<&'t Rule, Refusal> {
    let Some(listener) = table.listener(listener) else {
        return Err(Refusal::new(Reason::NoRule, format!("the table has no listener {listener:?}")));
    };
    let open = by_head(listener, view);
    let arm = if open.needs_body() {
        let values = request::read_body(&listener.index.pointers, view)?;
        listener.index.by_body(&open, &values)
    } else {
        open.best
    };
    let rule = listener.index.arm(arm).and_then(|arm| table.rules.get(arm.rule as usize));
    rule.map(Arc::as_ref).ok_or_else(|| {
        Refusal::new(Reason::NoRule, format!("no rule of listener {:?} matches", listener.name))
    })
}

fn by_head<'t>(listener: &'t TableListener, view: &impl RequestView) -> Open<'t> {
    let values: Vec<_> = listener.index.head.iter().map(|source| request::read_head(source, view)).collect();
    listener.index.by_head(&values)
}
