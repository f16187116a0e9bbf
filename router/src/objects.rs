//! The objects that a table is built from, as the sources last told them whole. One thread owns them; what is built from
//! them is elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use bulkhead_crds::{Cell, Destination, Router, RoutingPolicy, TrafficShift};
use bulkhead_protocol::serving::ObjectVersion;
use bulkhead_routing::table::{History, differ_in_weights_alone};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};

/// What a change touched, so that no more than that is built again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    pub(crate) table: bool,
    /// Of policies, and nothing else of them.
    pub(crate) weights: bool,
    pub(crate) endpoints: bool,
}

impl Touched {
    pub(crate) const TABLE: Self = Self { table: true, weights: false, endpoints: false };
    const WEIGHTS: Self = Self { table: false, weights: true, endpoints: false };
    pub(crate) const ENDPOINTS: Self = Self { table: false, weights: false, endpoints: true };

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            table: self.table || other.table,
            weights: self.weights || other.weights,
            endpoints: self.endpoints || other.endpoints,
        }
    }

    pub(crate) fn any(self) -> bool {
        self.table || self.weights || self.endpoints
    }

    pub(crate) fn when(self, changed: bool) -> Self {
        if changed { self } else { Self::default() }
    }
}

/// A change of the objects, made on the thread that owns them.
pub(crate) type Change = Box<dyn FnOnce(&mut Objects) -> Touched + Send>;

/// Everything that a source told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Objects {
    pub(crate) routers: Set<Router>,
    pub(crate) cells: Set<Cell>,
    pub(crate) policies: Set<RoutingPolicy>,
    pub(crate) shifts: Set<TrafficShift>,
    pub(crate) destinations: Set<Destination>,
    pub(crate) slices: Slices,
    /// Who owned which keys, as far as other routers may still go by it. Nobody tells it where objects are files.
    pub(crate) owners: History,
    /// Objects that could not be read, by their name or file, and why. They change nothing else.
    #[serde(skip)]
    pub(crate) bad: BTreeMap<String, String>,
}

impl Objects {
    /// Whether every kind was told whole at least once.
    pub(crate) fn complete(&self) -> bool {
        self.routers.complete
            && self.cells.complete
            && self.policies.complete
            && self.shifts.complete
            && self.destinations.complete
            && self.slices.complete
    }

    /// Name and version of every object that tables are built from.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (String, ObjectVersion)> + '_ {
        let Self { routers, cells, policies, shifts, destinations, .. } = self;
        let tables = routers.items.iter().map(version).chain(cells.items.iter().map(version));
        let rules = policies.items.iter().map(version).chain(shifts.items.iter().map(version));
        tables.chain(rules).chain(destinations.items.iter().map(version))
    }
}

/// `KIND/NAME` or `KIND/NAMESPACE/NAME`, with UID and generation.
pub(crate) fn version<K: Kind>(object: &K) -> (String, ObjectVersion) {
    let name = match object.namespace() {
        Some(namespace) => format!("{}/{namespace}/{}", K::NAME, object.name_any()),
        None => format!("{}/{}", K::NAME, object.name_any()),
    };
    let version = ObjectVersion {
        uid: object.uid().unwrap_or_default(),
        generation: object.meta().generation.unwrap_or_default(),
    };
    (name, version)
}

/// A kind of object that tables are built from.
pub(crate) trait Kind: Resource<DynamicType = ()> + Clone + PartialEq {
    const NAME: &'static str;
    fn set(objects: &mut Objects) -> &mut Set<Self>;
    /// Takes off what no table needs, so that a change of it is no change.
    fn strip(&mut self);
    /// What it touches that the object is another now.
    fn touches(_before: &Self, _now: &Self) -> Touched {
        Touched::TABLE
    }
    /// Keeps what later tables need to know of an object as it was told, its status included. Whether they differ for it.
    fn remember(_owners: &mut History, _told: Told<'_, Self>) -> bool {
        false
    }
}

/// What a source says of a kind.
pub(crate) enum Told<'a, K> {
    All(&'a [K]),
    One(&'a K),
    Gone(&'a Name),
}

macro_rules! kinds {
    ($($kind:ident in $field:ident { $($more:tt)* })+) => {$(
        impl Kind for $kind {
            const NAME: &'static str = stringify!($kind);

            fn set(objects: &mut Objects) -> &mut Set<Self> {
                &mut objects.$field
            }

            fn strip(&mut self) {
                self.status = None;
                self.metadata.managed_fields = None;
                self.metadata.annotations = None;
                self.metadata.resource_version = None;
            }

            $($more)*
        }
    )+};
}

kinds! {
    Router in routers {}
    Cell in cells {}
    RoutingPolicy in policies {
        fn touches(before: &Self, now: &Self) -> Touched {
            if differ_in_weights_alone(before, now) { Touched::WEIGHTS } else { Touched::TABLE }
        }

        fn remember(owners: &mut History, told: Told<'_, Self>) -> bool {
            match told {
                Told::All(policies) => owners.replace(policies),
                Told::One(policy) => owners.take(policy),
                Told::Gone((namespace, name)) => owners.forget(namespace.as_deref().unwrap_or_default(), name),
            }
        }
    }
    TrafficShift in shifts {}
    Destination in destinations {}
}

/// All objects of one kind, side by side as the builder of tables wants them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(
    from = "Vec<K>",
    into = "Vec<K>",
    bound(serialize = "K: Kind + Serialize", deserialize = "K: Kind + Deserialize<'de>")
)]
pub(crate) struct Set<K> {
    items: Vec<K>,
    places: HashMap<Name, usize>,
    complete: bool,
}

impl<K> Default for Set<K> {
    fn default() -> Self {
        Self { items: Vec::new(), places: HashMap::new(), complete: false }
    }
}

impl<K: Kind> From<Vec<K>> for Set<K> {
    fn from(items: Vec<K>) -> Self {
        let mut set = Self::default();
        set.replace(items);
        set
    }
}

impl<K> From<Set<K>> for Vec<K> {
    fn from(set: Set<K>) -> Self {
        set.items
    }
}

impl<K: Kind> Set<K> {
    pub(crate) fn items(&self) -> &[K] {
        &self.items
    }

    pub(crate) fn get(&self, namespace: Option<&str>, name: &str) -> Option<&K> {
        let place = self.places.get(&(namespace.map(str::to_owned), name.to_owned()))?;
        self.items.get(*place)
    }

    /// Takes a whole list in the place of all that was known.
    pub(crate) fn replace(&mut self, mut items: Vec<K>) -> Touched {
        items.iter_mut().for_each(K::strip);
        let changed = !self.complete || !self.same_as(&items);
        self.places = items.iter().enumerate().map(|(place, item)| (key(item), place)).collect();
        self.items = items;
        self.complete = true;
        Touched::TABLE.when(changed)
    }

    fn same_as(&self, items: &[K]) -> bool {
        items.len() == self.items.len()
            && items.iter().all(|item| {
                self.places
                    .get(&key(item))
                    .and_then(|place| self.items.get(*place))
                    .is_some_and(|had| had == item)
            })
    }

    pub(crate) fn apply(&mut self, mut item: K) -> Touched {
        item.strip();
        let key = key(&item);
        match self.places.get(&key).and_then(|place| self.items.get_mut(*place)) {
            Some(had) if *had == item => Touched::default(),
            Some(had) => {
                let touched = K::touches(had, &item);
                *had = item;
                touched
            }
            None => {
                self.places.insert(key, self.items.len());
                self.items.push(item);
                Touched::TABLE
            }
        }
    }

    pub(crate) fn remove(&mut self, namespace: Option<String>, name: String) -> Touched {
        let Some(place) = self.places.remove(&(namespace, name)) else { return Touched::default() };
        self.items.swap_remove(place);
        if let Some(moved) = self.items.get(place) {
            self.places.insert(key(moved), place);
        }
        Touched::TABLE
    }
}

/// Namespace, where the kind has any, and name.
pub(crate) type Name = (Option<String>, String);

pub(crate) fn key<K: Resource>(item: &K) -> Name {
    (item.meta().namespace.clone(), item.meta().name.clone().unwrap_or_default())
}

/// Where one orchestrator pod is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Pod {
    pub(crate) traffic: SocketAddr,
    pub(crate) health: SocketAddr,
}

impl Pod {
    /// A pod known by its traffic address alone: the health stream is on the next port.
    pub(crate) fn outside(traffic: SocketAddr) -> Option<Self> {
        let port = traffic.port().checked_add(1)?;
        Some(Self { traffic, health: SocketAddr::new(traffic.ip(), port) })
    }
}

/// One EndpointSlice of a cell's orchestrator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slice {
    pub(crate) cell: String,
    pub(crate) name: String,
    pub(crate) pods: Vec<Pod>,
}

/// All EndpointSlices of orchestrators.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Slice>", into = "Vec<Slice>")]
pub(crate) struct Slices {
    slices: BTreeMap<(String, String), Slice>,
    complete: bool,
}

impl From<Vec<Slice>> for Slices {
    fn from(slices: Vec<Slice>) -> Self {
        let mut all = Self::default();
        all.replace(slices);
        all
    }
}

impl From<Slices> for Vec<Slice> {
    fn from(slices: Slices) -> Self {
        slices.slices.into_values().collect()
    }
}

impl Slices {
    pub(crate) fn replace(&mut self, slices: Vec<Slice>) -> Touched {
        let next: BTreeMap<_, _> =
            slices.into_iter().map(|slice| ((slice.cell.clone(), slice.name.clone()), slice)).collect();
        let changed = !self.complete || next != self.slices;
        self.slices = next;
        self.complete = true;
        Touched::ENDPOINTS.when(changed)
    }

    pub(crate) fn apply(&mut self, slice: Slice) -> Touched {
        let key = (slice.cell.clone(), slice.name.clone());
        let changed = self.slices.get(&key) != Some(&slice);
        self.slices.insert(key, slice);
        Touched::ENDPOINTS.when(changed)
    }

    pub(crate) fn remove(&mut self, cell: String, name: String) -> Touched {
        Touched::ENDPOINTS.when(self.slices.remove(&(cell, name)).is_some())
    }

    /// Every pod of the cell, each once and in a stable order.
    pub(crate) fn pods(&self, cell: &str) -> Vec<Pod> {
        let first = (cell.to_owned(), String::new());
        let mut pods: Vec<Pod> = self
            .slices
            .range(first..)
            .take_while(|((of, _), _)| of == cell)
            .flat_map(|(_, slice)| slice.pods.iter().copied())
            .collect();
        pods.sort_unstable();
        pods.dedup();
        pods
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(name: &str, generation: i64) -> Cell {
        let mut cell = Cell::new(name, bulkhead_crds::CellSpec::default());
        cell.metadata.uid = Some(name.to_owned());
        cell.metadata.generation = Some(generation);
        cell
    }

    fn names(set: &Set<Cell>) -> Vec<&str> {
        let mut names: Vec<_> = set.items().iter().map(Cell::name).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn objects_come_change_and_go() {
        let mut set = Set::default();
        assert_eq!(set.replace(vec![cell("a", 1), cell("b", 1), cell("c", 1)]), Touched::TABLE);
        assert_eq!(set.apply(cell("b", 1)), Touched::default());
        assert_eq!(set.apply(cell("b", 2)), Touched::TABLE);
        assert_eq!(set.remove(None, "a".to_owned()), Touched::TABLE);
        assert_eq!(set.remove(None, "a".to_owned()), Touched::default());
        assert_eq!(set.apply(cell("d", 1)), Touched::TABLE);
        assert_eq!(names(&set), ["b", "c", "d"]);
        assert_eq!(set.get(None, "c").map(Cell::name), Some("c"));
        assert_eq!(set.replace(vec![cell("d", 1), cell("c", 1), cell("b", 2)]), Touched::default());
    }

    #[test]
    fn what_only_the_status_says_is_no_change() {
        let mut set = Set::default();
        set.replace(vec![cell("a", 1)]);
        let mut told = cell("a", 1);
        told.status = Some(bulkhead_crds::CellStatus::default());
        told.metadata.resource_version = Some("7".to_owned());
        assert_eq!(set.apply(told), Touched::default());
    }

    #[test]
    fn pods_of_a_cell_come_from_all_its_slices_once() {
        let pod = |port| {
            let traffic = SocketAddr::from(([10, 0, 0, 1], port));
            Pod { traffic, health: traffic }
        };
        let slice = |cell: &str, name: &str, pods: Vec<Pod>| Slice {
            cell: cell.to_owned(),
            name: name.to_owned(),
            pods,
        };
        let slices = Slices::from(vec![
            slice("a", "1", vec![pod(2), pod(1)]),
            slice("a", "2", vec![pod(2)]),
            slice("ab", "1", vec![pod(9)]),
        ]);
        assert_eq!(slices.pods("a"), [pod(1), pod(2)]);
        assert_eq!(slices.pods("b"), []);
    }
}
