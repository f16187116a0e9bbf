//! What every binary starts from: logs, metrics, the admin server, shutdown, the connector and its TLS, tunnels, sockets, ports, the clock. Nothing
//! here knows of cells, routers or Kubernetes.

pub mod admin;
pub mod clock;
pub mod connect;
pub mod logs;
pub mod metrics;
pub mod port;
pub mod readiness;
pub mod secured;
pub mod shutdown;
pub mod socket;
pub mod tls;
pub mod tunnel;

pub use admin::Admin;
pub use clock::Monotonic;
pub use connect::Connector;
pub use logs::{LogArgs, LogGuard};
pub use port::Port;
pub use readiness::{Gate, Readiness};
pub use shutdown::Shutdown;
