//! A ledger behind the admin port of the router that holds it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bulkhead_ledger::view::{Filter, ListView, PATH, ResolveView, StandingView};
use bulkhead_process::Connector;
use bulkhead_process::connect::http1;
use bulkhead_protocol::TransactionId;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};

/// How long the router may take to answer; a resolution waits for its disk.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn list(admin: &str, filter: &Filter) -> Result<ListView> {
    let mut path = format!("{PATH}?limit={}", filter.limit);
    if let Some(standing) = filter.standing {
        path += match standing {
            StandingView::Open => "&state=open",
            StandingView::Unknown => "&state=unknown",
            StandingView::Decided => "&state=decided",
        };
    }
    view(ask(admin, Method::GET, &path, Vec::new()).await?)
}

pub(super) async fn show(admin: &str, id: TransactionId) -> Result<ListView> {
    view(ask(admin, Method::GET, &format!("{PATH}/{id}"), Vec::new()).await?)
}

pub(super) async fn resolve(admin: &str, id: TransactionId, n: u32, asked: &ResolveView) -> Result<()> {
    let path = format!("{PATH}/{id}/{n}/resolve");
    let (status, body) = ask(admin, Method::POST, &path, serde_json::to_vec(asked)?).await?;
    if status.is_success() { Ok(()) } else { refused(status, &body) }
}

/// A transaction that is not there comes as a list without it.
fn view((status, body): (StatusCode, Bytes)) -> Result<ListView> {
    let view = serde_json::from_slice(&body);
    match (status, view) {
        (StatusCode::OK | StatusCode::NOT_FOUND, Ok(view)) => Ok(view),
        (StatusCode::OK, Err(error)) => Err(error).context("the router's answer is no list of transactions"),
        _ => refused(status, &body),
    }
}

fn refused<T>(status: StatusCode, body: &[u8]) -> Result<T> {
    let body = String::from_utf8_lossy(body);
    match body.trim() {
        "" => bail!("the router answered {status}; does it keep a ledger?"),
        said => bail!("the router answered {status}: {said}"),
    }
}

async fn ask(admin: &str, method: Method, path: &str, body: Vec<u8>) -> Result<(StatusCode, Bytes)> {
    let authority = authority(admin)?;
    let asked = async {
        let address = tokio::net::lookup_host(authority).await?.next().context("has no address")?;
        let stream = Connector::plain().connect(address, PATIENCE).await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, authority)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let answer = http1(stream).await?.send_request(request).await?;
        let status = answer.status();
        Ok::<_, anyhow::Error>((status, answer.into_body().collect().await?.to_bytes()))
    };
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    answer.map_err(|_| anyhow::anyhow!("no answer within {PATIENCE:?}")).flatten().with_context(|| {
        format!(
            "the router at {admin} cannot be asked; name its admin port by --admin, or its folder by --dir"
        )
    })
}

/// HOST:PORT of `http://HOST:PORT`.
fn authority(admin: &str) -> Result<&str> {
    let rest = admin.strip_prefix("http://").unwrap_or(admin);
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.is_empty() || authority.contains('/') || !authority.contains(':') {
        bail!("{admin:?} is no admin port: write http://HOST:PORT");
    }
    Ok(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(admin: &str, expected: Option<&str>) {
        assert_eq!(authority(admin).ok(), expected, "{admin}");
    }

    #[test]
    fn an_admin_port_is_a_host_and_a_port() {
        check("http://127.0.0.1:9090", Some("127.0.0.1:9090"));
        check("http://router-0:9090/", Some("router-0:9090"));
        check("[::1]:9090", Some("[::1]:9090"));
        for other in ["", "http://", "https://router:9090", "router", "http://router:9090/v1"] {
            check(other, None);
        }
    }

    #[test]
    fn a_transaction_that_is_not_there_is_an_empty_list_and_a_route_that_is_not_there_an_error() {
        let body = Bytes::from_static(br#"{"transactions": [], "more": 0, "damages": [], "notes": []}"#);
        assert_eq!(view((StatusCode::NOT_FOUND, body)).expect("is a list"), ListView::default());
        let error = view((StatusCode::NOT_FOUND, Bytes::new())).expect_err("is no list").to_string();
        assert!(error.contains("does it keep a ledger?"), "{error}");
    }
}
