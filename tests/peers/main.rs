//! HAProxy and nginx beside the codec, as real programs on loopback: what each makes of the same bytes, and whether they see
//! the requests that were read here in what goes on. `cargo xtask test` says where they are kept.

#[allow(dead_code, reason = "benches use all of it")]
#[path = "../bench/peers.rs"]
mod peers;
#[allow(dead_code, reason = "benches use all of it")]
#[path = "../bench/process.rs"]
mod process;

#[path = "../../http1/tests/it/beside.rs"]
mod beside;
#[allow(dead_code, reason = "the codec's own tests use all of it")]
#[path = "../../http1/tests/it/cases.rs"]
mod cases;
#[path = "../../http1/tests/it/forwarding.rs"]
mod forwarding;
#[path = "../../http1/tests/it/inputs.rs"]
mod inputs;
#[allow(dead_code, reason = "the codec's own tests use all of it")]
#[path = "../../http1/tests/it/reading.rs"]
mod reading;

mod daemon;
mod haproxy;
mod nginx;
