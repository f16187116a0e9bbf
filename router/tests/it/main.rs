//! A whole router in this process, between clients and fake cells: what goes in, what comes out, and who was hit.

mod api;
mod binary;
mod bodies;
mod callers;
#[allow(dead_code, reason = "the codec's own tests use all of it")]
#[path = "../../../http1/tests/it/cases.rs"]
mod cases;
mod cell_tls;
mod client;
mod destinations;
mod drains;
mod egress;
mod evidence;
mod fake;
#[allow(dead_code, reason = "the codec's own tests use all of it")]
#[path = "../../../http1/tests/it/forwarding.rs"]
mod forwarding;
mod health;
mod http2;
mod keys;
mod kubernetes;
mod ledger;
mod lifecycle;
mod owners;
mod payments;
mod proxy_protocol;
#[allow(dead_code, reason = "the codec's own tests use all of it")]
#[path = "../../../http1/tests/it/reading.rs"]
mod reading;
mod restarts;
mod routing;
mod sources;
mod tls;
mod transactions;
mod tunnels;
mod upgrades;
mod wire;
mod world;
