//! A whole router in this process, between clients and fake cells: what goes in, what comes out, and who was hit.

mod api;
mod binary;
mod bodies;
mod callers;
mod cell_tls;
mod client;
mod destinations;
mod egress;
mod evidence;
mod fake;
mod health;
mod keys;
mod kubernetes;
mod ledger;
mod lifecycle;
mod owners;
mod payments;
mod proxy_protocol;
mod restarts;
mod routing;
mod sources;
mod tls;
mod transactions;
mod tunnels;
mod upgrades;
mod world;
