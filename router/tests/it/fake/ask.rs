//! A fake cell that has messages sent to a destination: what it asks for, and what it does when that comes back.

use bulkhead_protocol::egress::{ContextHead, split};
use bulkhead_protocol::{Continue, Egress, Reason};
use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Full};

use super::{Answer, Behaviour, Closed, Inner, give_back};

/// Messages of one transaction to a destination. The context is the request's body, and the message too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) destination: &'static str,
    /// Of the first message; 1 by the rules.
    pub(crate) number: u32,
    pub(crate) context: bool,
    /// Messages in all.
    pub(crate) times: u32,
    pub(crate) then: Then,
}

/// What the cell does when the last message came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Answers with the context, what became of the message, and what the destination said.
    Answer,
    Reset,
    GiveBack,
    /// Asks for the same message again.
    AskAgain,
    /// Asks for one more, of that destination and without a context, and closes when it came back.
    AskPlain(&'static str),
    /// Does as [`Self::Answer`] once the cell behaves otherwise.
    Hang,
}

impl Ask {
    pub(crate) const fn of(destination: &'static str) -> Self {
        Self { destination, number: 1, context: true, times: 1, then: Then::Answer }
    }
}

/// Who can go on from a fake's context: every fake.
pub(super) const CONTEXT: &str = "fake-1";

pub(super) async fn ask(
    inner: &Inner,
    wanted: &Ask,
    headers: &HeaderMap,
    body: &Bytes,
    answer: &mut Answer,
) -> Result<(), Closed> {
    let back = Continue::read(headers).ok();
    let parts = split(body.clone(), back.as_ref().and_then(|back| back.context.as_ref()));
    let (context, said) = parts.map_err(|_| Closed)?;
    let Some(back) = back else {
        egress(answer, wanted, wanted.number, body);
        return Ok(());
    };
    if back.number < wanted.times {
        egress(answer, wanted, back.number + 1, &context);
        return Ok(());
    }
    match wanted.then {
        Then::Answer => {}
        Then::Hang => {
            let still = |behaviour: &Behaviour| *behaviour == Behaviour::Ask(*wanted);
            let _ = inner.behaviour.subscribe().wait_for(|behaviour| !still(behaviour)).await;
        }
        Then::Reset => return Err(Closed),
        Then::GiveBack => {
            give_back(answer, 502, Reason::ServiceFailed.as_str());
            return Ok(());
        }
        Then::AskPlain(_) if back.number > wanted.times => return Err(Closed),
        Then::AskPlain(destination) => {
            let plain = Ask { destination, context: false, ..*wanted };
            egress(answer, &plain, back.number + 1, &context);
            return Ok(());
        }
        Then::AskAgain => {
            egress(answer, wanted, back.number, &context);
            return Ok(());
        }
    }
    let reason = back.reason.map(|reason| format!(" {reason}")).unwrap_or_default();
    let status = back.status.as_str();
    let text = [&context[..], format!(" {status}{reason} ").as_bytes(), &said].concat();
    *answer.body_mut() = Full::new(Bytes::from(text)).boxed();
    Ok(())
}

fn egress(answer: &mut Answer, wanted: &Ask, number: u32, context: &Bytes) {
    let head = ContextHead { length: context.len(), version: CONTEXT.to_owned() };
    let asked = Egress {
        number,
        destination: wanted.destination.to_owned(),
        context: wanted.context.then_some(head),
        method: http::Method::POST,
        path: None,
    };
    asked.write(answer.headers_mut());
    let whole = if wanted.context { [&context[..], context].concat() } else { context.to_vec() };
    *answer.body_mut() = Full::new(Bytes::from(whole)).boxed();
}
