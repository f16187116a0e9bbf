//! Tries whether something can be reached, and serves the far side of such tries. Whether it ought to be reachable is
//! the caller's to judge: a refusal counts as blocked, since firewalls answer so too.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use bulkhead_process::connect::{Connector, http1};
use bytes::Bytes;
use clap::{Args, Subcommand};
use http::Method;
use http_body_util::Empty;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UdpSocket};

use crate::dns::{self, Transport};
use crate::load::parse_duration;

#[derive(Args, Clone, Debug)]
pub struct ProbeArgs {
    #[command(subcommand)]
    command: ProbeCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum ProbeCommand {
    /// Connects.
    Tcp(Target),
    /// Sends datagrams until one comes back, such as from `probe serve-udp`.
    Udp(Target),
    /// Sends a request without body; any answer counts as open. The target may be a whole `http://` URL.
    Http {
        #[command(flatten)]
        target: Target,
        #[arg(long, default_value = "GET")]
        method: Method,
    },
    /// Asks for the IPv4 address of a name.
    Dns {
        name: String,
        #[command(flatten)]
        server: Server,
        #[arg(long)]
        tcp: bool,
        #[arg(long, default_value = "2s", value_parser = parse_duration)]
        timeout: Duration,
    },
    /// Accepts connections and sends back what comes.
    ServeTcp(Listen),
    /// Sends every datagram back.
    ServeUdp(Listen),
}

#[derive(Args, Clone, Debug)]
struct Target {
    /// `ADDRESS:PORT`, or `NAME:PORT` with a DNS server.
    target: String,
    #[arg(long, default_value = "2s", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Clone, Debug)]
struct Server {
    /// DNS server, `ADDRESS` or `ADDRESS:PORT`. Default: the first of /etc/resolv.conf.
    #[arg(long)]
    dns: Option<String>,
}

#[derive(Args, Clone, Debug)]
struct Listen {
    #[arg(long, default_value = "0.0.0.0:9999")]
    listen: SocketAddr,
}

/// What was seen, or why nothing was.
pub type Seen = Result<String, String>;

/// Runs one probe, or serves until the process is stopped.
///
/// # Errors
/// When the probe itself is not possible: a malformed target, a port in use.
pub async fn run(arguments: ProbeArgs) -> anyhow::Result<Seen> {
    match arguments.command {
        ProbeCommand::Tcp(target) => target.probe(tcp).await,
        ProbeCommand::Udp(target) => target.probe(udp).await,
        ProbeCommand::Http { mut target, method } => {
            let path = target.split_url();
            target.probe(async |address, timeout| http(address, &method, &path, timeout).await).await
        }
        ProbeCommand::Dns { name, server, tcp, timeout } => {
            let transport = if tcp { Transport::Tcp } else { Transport::Udp };
            let answer = dns::resolve(server.address()?, &name, transport, timeout).await;
            Ok(answer.map(|address| address.to_string()).map_err(|error| format!("{error:#}")))
        }
        ProbeCommand::ServeTcp(listen) => serve_tcp(TcpListener::bind(listen.listen).await?).await,
        ProbeCommand::ServeUdp(listen) => serve_udp(UdpSocket::bind(listen.listen).await?).await,
    }
}

/// Connects to `address`.
///
/// # Errors
/// Why it could not, for people.
pub async fn tcp(address: SocketAddr, timeout: Duration) -> Seen {
    let stream = Connector::plain().connect(address, timeout).await;
    stream.map(|_| format!("connected to {address}")).map_err(|error| format!("{address}: {error}"))
}

/// Sends a datagram every 200 ms until one comes back.
///
/// # Errors
/// Why none came, for people.
pub async fn udp(address: SocketAddr, timeout: Duration) -> Seen {
    let exchange = async {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).await?;
        socket.connect(address).await?;
        let mut buffer = [0; 64];
        loop {
            socket.send(b"bulkhead-probe").await?;
            let answer = tokio::time::timeout(Duration::from_millis(200), socket.recv(&mut buffer)).await;
            if let Ok(length) = answer {
                return length;
            }
        }
    };
    match tokio::time::timeout(timeout, exchange).await {
        Ok(Ok(length)) => Ok(format!("{length} bytes came back from {address}")),
        Ok(Err(error)) => Err(format!("{address}: {error}")),
        Err(_) => Err(format!("{address}: nothing came back within {timeout:?}")),
    }
}

/// Sends one request to `address`.
///
/// # Errors
/// Why there was no answer, for people.
pub async fn http(address: SocketAddr, method: &Method, path: &str, timeout: Duration) -> Seen {
    let exchange = async {
        let stream = Connector::plain().connect(address, timeout).await?;
        let mut sender = http1(stream).await?;
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", address.to_string())
            .body(Empty::<Bytes>::new())?;
        anyhow::Ok(sender.send_request(request).await?.status())
    };
    match tokio::time::timeout(timeout, exchange).await {
        Ok(Ok(status)) => Ok(format!("{address} answered {status}")),
        Ok(Err(error)) => Err(format!("{address}: {error:#}")),
        Err(_) => Err(format!("{address}: no answer within {timeout:?}")),
    }
}

/// Sends back what comes, on every connection.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve_tcp(listener: TcpListener) -> anyhow::Result<Seen> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut reader, mut writer) = stream.split();
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
            let _ = writer.shutdown().await;
        });
    }
}

/// Sends every datagram back to whoever sent it.
///
/// # Errors
/// When the socket fails for good.
pub async fn serve_udp(socket: UdpSocket) -> anyhow::Result<Seen> {
    let mut buffer = vec![0; 65_536];
    loop {
        // An earlier answer's ICMP error surfaces here, and is nothing to stop for.
        if let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&buffer[..length], from).await;
        }
    }
}

impl Target {
    /// Leaves `HOST:PORT` of a URL, and gives its path.
    fn split_url(&mut self) -> String {
        let rest = self.target.strip_prefix("http://").unwrap_or(&self.target);
        let (host, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/"),
        };
        let path = path.to_owned();
        // An IPv6 address has colons of its own, before its bracket.
        let has_port = host.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        self.target = if has_port { host.to_owned() } else { format!("{host}:80") };
        path
    }

    async fn probe(self, how: impl AsyncFn(SocketAddr, Duration) -> Seen) -> anyhow::Result<Seen> {
        let (host, port) = self.target.rsplit_once(':').context("the target is not ADDRESS:PORT")?;
        let port: u16 = port.parse().with_context(|| format!("{port:?} is not a port"))?;
        let address = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => address,
            Err(_) => match dns::resolve(self.server.address()?, host, Transport::Udp, self.timeout).await {
                Ok(address) => address.into(),
                Err(error) => return Ok(Err(format!("{error:#}"))),
            },
        };
        Ok(how(SocketAddr::new(address, port), self.timeout).await)
    }
}

impl Server {
    fn address(&self) -> anyhow::Result<SocketAddr> {
        match &self.dns {
            Some(text) => parse_server(text),
            None => first_nameserver(&std::fs::read_to_string("/etc/resolv.conf")?),
        }
    }
}

fn parse_server(text: &str) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let address: IpAddr = text.parse().with_context(|| format!("{text:?} is no address of a DNS server"))?;
    Ok(SocketAddr::new(address, 53))
}

fn first_nameserver(resolv_conf: &str) -> anyhow::Result<SocketAddr> {
    let mut servers = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    match servers.next() {
        Some(server) => parse_server(server.trim()),
        None => bail!("/etc/resolv.conf names no nameserver; give one with --dns"),
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_process::Port;

    use super::*;

    const LONG: Duration = Duration::from_secs(5);
    const SHORT: Duration = Duration::from_millis(300);

    #[tokio::test]
    async fn tells_open_from_closed_over_tcp() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let address = listener.local_addr().expect("is bound");
        tokio::spawn(serve_tcp(listener));
        assert!(tcp(address, LONG).await.is_ok());
        let closed = Port::free().expect("one is free");
        assert!(tcp(closed.address, LONG).await.is_err());
    }

    #[tokio::test]
    async fn tells_answered_from_silent_over_udp() {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).await.expect("binds");
        let address = socket.local_addr().expect("is bound");
        // Bound but silent first, then echoing: only an answer counts as open.
        assert!(udp(address, SHORT).await.is_err());
        tokio::spawn(serve_udp(socket));
        assert!(udp(address, LONG).await.is_ok());
    }

    #[test]
    fn a_url_is_an_address_and_a_path() {
        let check = |text: &str, target: &str, path: &str| {
            let (server, timeout) = (Server { dns: None }, LONG);
            let mut probed = Target { target: text.to_owned(), timeout, server };
            assert_eq!((probed.split_url().as_str(), probed.target.as_str()), (path, target), "{text}");
        };
        check(
            "http://10.0.0.1:8080/control/ready?value=false",
            "10.0.0.1:8080",
            "/control/ready?value=false",
        );
        check("http://10.0.0.1", "10.0.0.1:80", "/");
        check("http://[fd00::1]/x", "[fd00::1]:80", "/x");
        check("[fd00::1]:81", "[fd00::1]:81", "/");
        check("10.0.0.1:81", "10.0.0.1:81", "/");
    }

    #[test]
    fn dns_servers_may_lack_the_port() {
        assert_eq!(parse_server("10.0.0.10").expect("an address").port(), 53);
        assert_eq!(parse_server("10.0.0.10:5353").expect("an address").port(), 5353);
        assert_eq!(
            first_nameserver("search x\nnameserver 10.96.0.10\n").expect("an address").to_string(),
            "10.96.0.10:53"
        );
        assert!(first_nameserver("search x\n").is_err());
    }
}
