//! The names that objects of Bulkhead carry in a cluster: labels, annotations, finalizers, ports and namespaces.

/// The API group of every kind.
pub const GROUP: &str = "bulkhead.dev";
/// The served version of every kind.
pub const VERSION: &str = "v1alpha1";
/// Name of the cell that an object belongs to; on the namespace and everything in it that the operator made.
pub const LABEL_CELL: &str = "bulkhead.dev/cell";
/// Which part of Bulkhead a pod is: one of the `COMPONENT_` values.
pub const LABEL_COMPONENT: &str = "bulkhead.dev/component";
/// Name of the Router that a router pod serves.
pub const LABEL_ROUTER: &str = "bulkhead.dev/router";
/// Revision of the CellTemplate that a workload object was made from.
pub const LABEL_REVISION: &str = "bulkhead.dev/revision";
/// Set to [`MANAGER`] on everything that the operator made.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`LABEL_MANAGED_BY`], and the field manager of the operator's writes.
pub const MANAGER: &str = "bulkhead";
/// Written by the call that creates a cell's namespace, and the proof that it is ours: the Cell's UID.
pub const ANNOTATION_CELL_UID: &str = "bulkhead.dev/cell-uid";
/// Names, on a new Cell, the UID of a retained namespace that it takes again.
pub const ANNOTATION_ADOPT_NAMESPACE: &str = "bulkhead.dev/adopt-namespace-uid";
/// Keeps a deleted Cell until it is drained and out of every router's table.
pub const FINALIZER_DRAIN: &str = "bulkhead.dev/drain";
pub const COMPONENT_OPERATOR: &str = "operator";
pub const COMPONENT_ROUTER: &str = "router";
/// The Service through which cell-runtimes find routers that open tunnels; without one, cells get none.
pub const COMPONENT_ROUTER_CONNECT: &str = "router-connect";
pub const COMPONENT_CELL_RUNTIME: &str = "cell-runtime";
pub const COMPONENT_WORKLOAD: &str = "workload";
/// The Deployment, Service, ServiceAccount and Role of a cell's orchestrator, in the cell's namespace.
pub const CELL_RUNTIME: &str = "cell-runtime";
/// Port name on the cell-runtime Service for transactions.
pub const PORT_TRAFFIC: &str = "traffic";
/// Port name on the cell-runtime Service for the health stream.
pub const PORT_HEALTH: &str = "health";
/// Port name for tunnels (CONNECT): on the cell-runtime Service, for the cell's own pods; on the routers' Service, for
/// cell-runtimes.
pub const PORT_CONNECT: &str = "connect";
/// Longest name of a Cell; the namespace's name adds [`NAMESPACE_PREFIX`], and names of objects in it stay legal.
pub const MAX_CELL_NAME: usize = 50;
pub const NAMESPACE_PREFIX: &str = "cell-";

/// The namespace of a cell. It is derived, so two Cells can never name the same one and a rename cannot orphan it.
pub fn namespace_of(cell: &str) -> String {
    format!("{NAMESPACE_PREFIX}{cell}")
}
