//! Accepts connections, whatever happens.

use std::time::Duration;

use bulkhead_process::socket;
use tokio::net::{TcpListener, TcpStream};

/// After an error that the next try would meet again, such as too many open files.
const PAUSE: Duration = Duration::from_millis(20);

/// The next connection. `unread` is how long its other side may take none of what is sent to it.
pub(crate) async fn accept(listener: &TcpListener, unread: Option<Duration>) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(error) = socket::set_up(&stream, unread) {
                    tracing::debug!(%error, "a connection was gone before it was served");
                }
                return stream;
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
