//! What the operator knows of the cluster: one watch for each kind, each filling a store, and the word passed on about
//! which Cells a change concerns. What follows from a change is decided by the reconcilers.

use std::cell::RefCell;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use bulkhead_crds::{Cell, CellTemplate, Destination, Router, RoutingPolicy, TrafficShift, names};
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, DeserializeGuard, NamespaceResourceScope, PartialObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::kinds::Kinds;
use crate::revision;
use crate::watches::{Filled, reflect};

/// An object that may not be readable; one such never stalls the others.
pub(crate) type Guard<K> = DeserializeGuard<K>;

/// Every store.
pub(crate) struct Stores {
    pub cells: Store<Guard<Cell>>,
    pub templates: Store<Guard<CellTemplate>>,
    pub routers: Store<Guard<Router>>,
    pub policies: Store<Guard<RoutingPolicy>>,
    pub shifts: Store<Guard<TrafficShift>>,
    pub destinations: Store<Guard<Destination>>,
    pub revisions: Store<ControllerRevision>,
    pub router_pods: Store<Pod>,
    pub api_server: Store<EndpointSlice>,
    /// Through which cells find routers that open tunnels.
    pub tunnels: Store<Service>,
    /// Only their metadata: a node writes its status all the time.
    pub nodes: Store<PartialObjectMeta<Node>>,
    /// Addresses of the cells' orchestrators.
    pub orchestrators: Store<EndpointSlice>,
    /// What the operator made in cells' namespaces, by kind.
    pub objects: Vec<Store<DynamicObject>>,
    /// Whether each store has its first whole list.
    filled: Vec<Filled>,
    /// Keeps the watches running; they end with the stores.
    _tasks: JoinSet<()>,
}

/// Where the word of changes goes.
#[derive(Clone)]
pub(crate) struct Changes {
    /// Names of Cells to look at again.
    pub cells: mpsc::Sender<String>,
    /// Counts changes of what routers serve.
    pub routing: Arc<watch::Sender<u64>>,
    /// Counts changes of templates, their revisions and the cells that have them.
    pub templates: Arc<watch::Sender<u64>>,
}

/// The watch of Cells, which fills their store while their controller polls it.
pub(crate) type Cells = BoxStream<'static, Result<Guard<Cell>, watcher::Error>>;

/// Who else is told of a change, besides the Cells that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tell {
    Nobody,
    Routing,
    Templates,
}

/// The readable objects of a store.
pub(crate) fn readable<K>(store: &Store<Guard<K>>) -> Vec<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + 'static,
{
    store.state().iter().filter_map(|guard| guard.0.as_ref().ok().cloned()).collect()
}

/// One readable object of a store, by its name.
pub(crate) fn get<K>(store: &Store<Guard<K>>, name: &str) -> Option<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + 'static,
{
    store.get(&ObjectRef::new(name))?.0.as_ref().ok().cloned()
}

impl Stores {
    /// Starts every watch on the current runtime.
    pub(crate) fn start(
        client: &Client,
        config: &Config,
        kinds: &Kinds,
        changes: &Changes,
    ) -> (Arc<Self>, Cells) {
        let all = watcher::Config::default;
        let ours = || all().labels(&format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGER));
        let (cells, stream, cells_filled) = reflect(Api::<Guard<Cell>>::all(client.clone()), all(), ());
        let (every, of_template, of_revision) = (cells.clone(), cells.clone(), cells.clone());
        let (of_destination, with_destinations) = (cells.clone(), cells.clone());
        let follow =
            Follow { client, changes, filled: RefCell::new(vec![cells_filled]), tasks: RefCell::default() };
        // Only for the word of changes: whose a namespace is, is asked of the API server itself.
        follow.all(ours(), Tell::Nobody, |namespace: &Namespace| cell_of(namespace));
        let mut stores = Self {
            filled: Vec::new(),
            _tasks: JoinSet::new(),
            templates: follow.all(all(), Tell::Templates, move |template: &Guard<CellTemplate>| {
                cells_of(&of_template, &template.name_any())
            }),
            routers: follow.all(all(), Tell::Routing, |_: &Guard<Router>| Vec::new()),
            policies: follow.all(all(), Tell::Routing, |_: &Guard<RoutingPolicy>| Vec::new()),
            shifts: follow.all(all(), Tell::Routing, |shift: &Guard<TrafficShift>| {
                shift.0.as_ref().ok().and_then(|shift| shift.spec.cell.clone()).into_iter().collect()
            }),
            destinations: follow.all(all(), Tell::Routing, move |destination: &Guard<Destination>| {
                let name = destination.name_any();
                cells_where(&of_destination, |cell| cell.spec.destinations.contains(&name))
            }),
            revisions: follow.within(&config.namespace, ours(), Tell::Templates, move |revision: &_| {
                revision::template_of(revision)
                    .map(|template| cells_of(&of_revision, template))
                    .unwrap_or_default()
            }),
            router_pods: follow.within(
                config.router_namespace(),
                all().labels(&format!("{}={}", names::LABEL_COMPONENT, names::COMPONENT_ROUTER)),
                Tell::Routing,
                |_: &Pod| Vec::new(),
            ),
            api_server: follow.within(
                "default",
                all().labels("kubernetes.io/service-name=kubernetes"),
                Tell::Nobody,
                move |_: &EndpointSlice| every.state().iter().map(|cell| cell.name_any()).collect(),
            ),
            tunnels: follow.within(
                config.router_namespace(),
                all().labels(&format!("{}={}", names::LABEL_COMPONENT, names::COMPONENT_ROUTER_CONNECT)),
                Tell::Routing,
                move |_: &Service| cells_where(&with_destinations, |cell| !cell.spec.destinations.is_empty()),
            ),
            nodes: follow.all(all(), Tell::Nobody, |_: &PartialObjectMeta<Node>| Vec::new()),
            orchestrators: follow.all(
                all().labels(&format!("kubernetes.io/service-name={}", names::CELL_RUNTIME)),
                Tell::Nobody,
                |slice: &EndpointSlice| cell_of(slice),
            ),
            objects: kinds.iter().map(|kind| follow.kind(&kind.resource, ours())).collect(),
            cells: cells.clone(),
        };
        stores.filled = follow.filled.into_inner();
        stores._tasks = follow.tasks.into_inner();
        let notify = changes.clone();
        let siblings = cells.clone();
        let stream = stream.then(move |touched| {
            notify.bump_routing();
            notify.bump_templates();
            let waiting = touched.as_ref().map(|cell| waiting_for(&siblings, cell)).unwrap_or_default();
            let notify = notify.clone();
            async move {
                notify.look_at(waiting).await;
                touched
            }
        });
        (Arc::new(stores), stream.boxed())
    }

    /// Without anything in them, for tests.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        fn nothing<K>() -> Store<K>
        where
            K: Resource<DynamicType = ()> + Clone + 'static,
        {
            kube::runtime::reflector::store::Writer::new(()).as_reader()
        }
        Self {
            cells: nothing(),
            templates: nothing(),
            routers: nothing(),
            policies: nothing(),
            shifts: nothing(),
            destinations: nothing(),
            revisions: nothing(),
            router_pods: nothing(),
            api_server: nothing(),
            tunnels: nothing(),
            nodes: nothing(),
            orchestrators: nothing(),
            objects: Vec::new(),
            filled: Vec::new(),
            _tasks: JoinSet::new(),
        }
    }

    /// Waits until every store has its first whole list. That of Cells fills as their controller runs.
    ///
    /// Not by the stores' own means: of several that wait for one store, kube wakes only the last.
    pub(crate) async fn ready(&self) {
        for filled in &self.filled {
            // A watch that ended takes the process with it, so there is nothing to do about it here.
            let _ = filled.clone().wait_for(|filled| *filled).await;
        }
    }
}

impl Changes {
    fn tell(&self, tell: Tell) {
        match tell {
            Tell::Nobody => {}
            Tell::Routing => self.bump_routing(),
            Tell::Templates => self.bump_templates(),
        }
    }

    pub(crate) async fn look_at(&self, cells: Vec<String>) {
        for cell in cells {
            // The receiver lives as long as the process.
            let _ = self.cells.send(cell).await;
        }
    }

    pub(crate) fn bump_routing(&self) {
        self.routing.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(crate) fn bump_templates(&self) {
        self.templates.send_modify(|count| *count = count.wrapping_add(1));
    }
}

fn cell_of<K: ResourceExt>(object: &K) -> Vec<String> {
    object.labels().get(names::LABEL_CELL).cloned().into_iter().collect()
}

fn cells_of(cells: &Store<Guard<Cell>>, template: &str) -> Vec<String> {
    cells_where(cells, |cell| cell.spec.template.as_deref() == Some(template))
}

/// Names of the readable Cells of which that holds.
fn cells_where(cells: &Store<Guard<Cell>>, holds: impl Fn(&Cell) -> bool) -> Vec<String> {
    let all = cells.state();
    let readable = all.iter().filter_map(|guard| guard.0.as_ref().ok());
    readable.filter(|cell| holds(cell)).map(|cell| cell.name().to_owned()).collect()
}

/// The other cells of the template that are not at the revision that they go to: what changed may let them.
fn waiting_for(cells: &Store<Guard<Cell>>, touched: &Guard<Cell>) -> Vec<String> {
    let Ok(touched) = &touched.0 else { return Vec::new() };
    let outdated = |cell: &Cell| {
        let status = cell.status.as_ref();
        cell.spec.template == touched.spec.template
            && cell.name() != touched.name()
            && status.is_some_and(|status| status.current_revision != status.update_revision)
    };
    cells_where(cells, outdated)
}

/// Starts stores that tasks of their own keep filled.
struct Follow<'a> {
    client: &'a Client,
    changes: &'a Changes,
    filled: RefCell<Vec<Filled>>,
    tasks: RefCell<JoinSet<()>>,
}

impl Follow<'_> {
    fn all<K>(
        &self,
        config: watcher::Config,
        tell: Tell,
        concerns: impl Fn(&K) -> Vec<String> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        self.start(Api::all(self.client.clone()), config, (), tell, concerns)
    }

    fn within<K>(
        &self,
        namespace: &str,
        config: watcher::Config,
        tell: Tell,
        concerns: impl Fn(&K) -> Vec<String> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        self.start(Api::namespaced(self.client.clone(), namespace), config, (), tell, concerns)
    }

    fn kind(&self, resource: &ApiResource, config: watcher::Config) -> Store<DynamicObject> {
        let api = Api::all_with(self.client.clone(), resource);
        self.start(api, config, resource.clone(), Tell::Nobody, cell_of)
    }

    fn start<K>(
        &self,
        api: Api<K>,
        config: watcher::Config,
        dynamic: K::DynamicType,
        tell: Tell,
        concerns: impl Fn(&K) -> Vec<String> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Clone + Eq + Hash + Send + Sync + Unpin,
    {
        let kind = K::kind(&dynamic).into_owned();
        let (reader, mut stream, filled) = reflect(api, config, dynamic);
        self.filled.borrow_mut().push(filled);
        let changes = self.changes.clone();
        self.tasks.borrow_mut().spawn(async move {
            while let Some(touched) = stream.next().await {
                match touched {
                    Ok(object) => {
                        changes.tell(tell);
                        changes.look_at(concerns(&object)).await;
                    }
                    Err(error) => tracing::warn!(%error, kind, "a watch failed and is tried again"),
                }
            }
        });
        reader
    }
}
