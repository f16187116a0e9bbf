//! The Kubernetes API of Bulkhead, group `bulkhead.dev/v1alpha1`: types, limits, defaults and the YAML made from
//! them. No I/O and no client; what a field leads to is decided elsewhere.

// Printer columns repeat `type_` in one attribute, which the first lint takes for copies; the second fires inside
// what `KubeSchema` derives.
#![allow(clippy::duplicated_attributes, unreachable_pub)]

#[cfg(test)]
mod blessed;
pub mod cell;
pub mod condition;
pub mod destination;
pub mod duration;
mod front;
pub mod manifest;
pub mod names;
pub mod policy;
mod quantity;
#[cfg(test)]
mod reference;
pub mod router;
mod schema;
pub mod shift;
pub mod template;

pub use cell::{Cell, CellSpec, CellState, CellStatus, DeletionPolicy, Placement};
pub use condition::{Condition, ConditionStatus};
pub use destination::{Destination, DestinationSpec, DestinationStatus};
pub use duration::Duration;
pub use manifest::{Manifest, all};
pub use policy::{RoutingPolicy, RoutingPolicySpec, RoutingPolicyStatus, RoutingRule};
pub use router::{Listener, Router, RouterSpec, RouterStatus};
pub use shift::{TrafficShift, TrafficShiftSpec, TrafficShiftStatus};
pub use template::{CellTemplate, CellTemplateSpec, CellTemplateStatus};
