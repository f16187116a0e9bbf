//! The way that the files of a router's folder take, without the folder.

#[path = "../../../router/src/source/document.rs"]
mod document;
#[path = "../../../router/src/source/schema.rs"]
mod schema;

use std::sync::LazyLock;

use bulkhead_crds::{Cell, Destination, Router, RoutingPolicy, TrafficShift};
use document::{Document, Object};
use schema::Schemas;

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| Schemas::load().expect("the definitions are JSON"));

#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) routers: Vec<Router>,
    pub(crate) cells: Vec<Cell>,
    pub(crate) policies: Vec<RoutingPolicy>,
    pub(crate) shifts: Vec<TrafficShift>,
    pub(crate) destinations: Vec<Destination>,
}

impl Objects {
    pub(crate) fn read(text: &str) -> Self {
        let mut objects = Self::default();
        for document in document::split(text) {
            match document::read(&document, &SCHEMAS) {
                Ok(Document::Object(object)) => objects.take(object),
                Ok(Document::Ignored) => {}
                Err(wrong) => assert!(!wrong.is_empty()),
            }
        }
        objects
    }

    fn take(&mut self, object: Object) {
        assert!(object.name().contains('/'));
        match object {
            Object::Router(router) => self.routers.push(*router),
            Object::Cell(cell) => self.cells.push(*cell),
            Object::Policy(policy) => self.policies.push(*policy),
            Object::Shift(shift) => self.shifts.push(*shift),
            Object::Destination(destination) => self.destinations.push(*destination),
        }
    }
}
