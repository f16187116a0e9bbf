//! What the kernel is told of every TCP connection of ours, made or accepted: to send at once, and to find out that the
//! other side is gone where nobody says so, as when its node dies.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// How long a side that is gone without a word keeps its connection. One that is alive answers the kernel's probes
/// however little it has to say.
pub const GONE: Duration = Duration::from_secs(30);
/// Silence before the first probe, and between two. The last is over at [`GONE`].
const QUIET: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);
const PROBES: u32 = 4;

/// Sets the connection up. `unread` bounds how long the other side may take none of the bytes that are sent to it, and
/// holds for silence too; without it, one that is alive and slow may take its time.
///
/// # Errors
/// What the kernel said.
pub fn set_up(stream: &TcpStream, unread: Option<Duration>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(QUIET).with_interval(PROBE).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(unread)
}
