//! A request as decisions read it.

use std::cell::Cell;

use bulkhead_routing::RequestView;
use bytes::Bytes;

use crate::message::Head;

/// A head, with the body where it is there whole.
pub(crate) struct View<'a> {
    head: &'a Head,
    body: &'a [u8],
    asked: Cell<bool>,
}

impl<'a> View<'a> {
    /// Before the body is read: a decision that asks for it has to be taken again.
    pub(crate) fn head_alone(head: &'a Head) -> Self {
        Self { head, body: &[], asked: Cell::new(false) }
    }

    pub(crate) fn whole(head: &'a Head, body: Option<&'a Bytes>) -> Self {
        Self { head, body: body.map_or(&[], |bytes| bytes), asked: Cell::new(false) }
    }

    pub(crate) fn body_was_asked_for(&self) -> bool {
        self.asked.get()
    }
}

impl RequestView for View<'_> {
    fn method(&self) -> &str {
        self.head.method.as_str()
    }

    fn path(&self) -> &str {
        self.head.target.path()
    }

    fn query(&self) -> Option<&str> {
        self.head.target.query()
    }

    fn host(&self) -> Option<&str> {
        std::str::from_utf8(self.head.host()).ok().filter(|host| !host.is_empty())
    }

    fn header(&self, lower_case_name: &str) -> Option<&[u8]> {
        self.head.fields.get(lower_case_name)
    }

    fn body(&self) -> &[u8] {
        self.asked.set(true);
        self.body
    }
}
