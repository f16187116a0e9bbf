//! Transactions at owners, by the versions of the policies that sent them there: the operator settles an edit only once
//! nothing that earlier ones sent is under way. Whether a key may go to its owner is `routing`'s to say.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bulkhead_protocol::serving::ObjectVersion;
use bulkhead_routing::Table;

use crate::snapshot::{About, Snapshot};
use crate::transaction::Transaction;
use crate::worker::Worker;

/// Versions of objects by `KIND/NAMESPACE/NAME`.
type Versions = BTreeMap<String, ObjectVersion>;

/// What the builder holds: the versions in force of all policies with `owner` rules, and former ones.
#[derive(Default)]
pub(crate) struct Owners {
    /// Held besides by the transactions that these versions sent to an owner.
    token: Arc<()>,
    versions: Versions,
    former: Vec<Former>,
}

/// Versions of policies that are in force no longer.
#[derive(Clone)]
pub(crate) struct Former {
    token: Weak<()>,
    versions: Arc<Versions>,
}

impl Owners {
    /// Takes the versions that a new table has. What was in force is handed out, to be dropped once that table is: who
    /// finds it gone then has chosen from a table that nothing is sent by any more.
    pub(crate) fn renew(&mut self, table: &Table, objects: &Versions) -> Option<Arc<()>> {
        let versions = in_force(table, objects);
        self.former.retain(|former| former.token.strong_count() > 0);
        if versions == self.versions {
            return None;
        }
        let token = std::mem::take(&mut self.token);
        let versions = Arc::new(std::mem::replace(&mut self.versions, versions));
        self.former.push(Former { token: Arc::downgrade(&token), versions });
        Some(token)
    }

    pub(crate) fn token(&self) -> Weak<()> {
        Arc::downgrade(&self.token)
    }

    pub(crate) fn former(&self) -> Vec<Former> {
        self.former.clone()
    }
}

fn in_force(table: &Table, objects: &Versions) -> Versions {
    let policies = table.rules().iter().filter(|rule| rule.owner);
    let versions = policies.filter_map(|rule| {
        let name = format!("RoutingPolicy/{}", rule.id.policy());
        let version = objects.get(&name)?.clone();
        Some((name, version))
    });
    versions.collect()
}

/// The policies of which an earlier version than the table's has transactions under way at owners.
pub(crate) fn unsettled(about: &About) -> BTreeSet<String> {
    let under_way = about.former.iter().filter(|former| former.token.strong_count() > 0);
    let versions = under_way.flat_map(|former| &*former.versions);
    versions
        .filter(|(name, was)| about.objects.get(*name) != Some(*was))
        .map(|(name, _)| name.clone())
        .collect()
}

/// A transaction at an owner. Given up without an answer, it counts until the time is over that the cell was given for it.
///
/// Every cell is told how long that is (`bulkhead-deadline`), and has nothing under way after it.
pub(crate) struct Owned {
    worker: Rc<Worker>,
    token: Arc<()>,
    /// By the process's clock; nothing is under way in the cell after it.
    until: Duration,
}

impl Owned {
    /// None where the snapshot is no longer in force.
    pub(crate) fn begin(worker: &Rc<Worker>, snapshot: &Snapshot) -> Option<Self> {
        let token = snapshot.owned.upgrade()?;
        Some(Self { worker: Rc::clone(worker), token, until: Duration::ZERO })
    }
}

impl Transaction {
    /// The cell of this attempt is given until then.
    pub(crate) fn is_given(&mut self, until: Duration) {
        if let Some(owned) = &mut self.owned {
            owned.until = until;
        }
    }

    /// No cell has anything of it under way.
    pub(crate) fn rests(&mut self) {
        self.is_given(Duration::ZERO);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.until > self.worker.clock().elapsed() {
            self.worker.lingering().add(Arc::clone(&self.token), self.until);
        }
    }
}

/// Given-up transactions of one thread that cells may still work on, with when that ends.
#[derive(Default)]
pub(crate) struct Lingering(std::cell::RefCell<Vec<(Arc<()>, Duration)>>);

impl Lingering {
    fn add(&self, token: Arc<()>, until: Duration) {
        let mut all = self.0.borrow_mut();
        match all.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &token)) {
            Some((_, known)) => *known = until.max(*known),
            None => all.push((token, until)),
        }
    }

    pub(crate) fn sweep(&self, now: Duration) {
        self.0.borrow_mut().retain(|(_, until)| *until > now);
    }
}
