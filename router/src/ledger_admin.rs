//! The ledger on the admin port: what it holds in memory, for anybody who reaches the port, and resolving an unknown
//! effect, for whoever is on this machine. What a standing does to a request is not decided here.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use bulkhead_ledger::view::{Filter, ListView, PATH, ResolveView, StandingView};
use bulkhead_ledger::{Ledger, Refusal, Resolution, ResolveError};
use bulkhead_protocol::TransactionId;
use serde::Deserialize;

/// Transactions in one answer, where nobody asks for another number.
const LIMIT: usize = 100;
/// And at most.
const MAX_LIMIT: usize = 10_000;

/// A refusal in words, with a newline for whoever uses a terminal.
type Refused = (StatusCode, String);

/// `GET /v1/ledger?state=open|unknown|decided&limit=N`, `GET /v1/ledger/ID`, and from this machine alone
/// `POST /v1/ledger/ID/N/resolve` with `{"as": "answered" | "not-sent", "note": TEXT}`.
pub fn routes(ledger: Ledger) -> Router {
    Router::new()
        .route(PATH, get(list))
        .route(&format!("{PATH}/{{id}}"), get(show))
        .route(&format!("{PATH}/{{id}}/{{n}}/resolve"), post(resolve))
        .with_state(ledger)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    state: Option<StandingView>,
    limit: Option<usize>,
}

async fn list(State(ledger): State<Ledger>, Query(asked): Query<Asked>) -> Json<ListView> {
    let limit = asked.limit.unwrap_or(LIMIT).min(MAX_LIMIT);
    Json(ledger.list(&Filter { standing: asked.state, limit }))
}

async fn show(
    State(ledger): State<Ledger>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<ListView>), Refused> {
    let found = ledger.show(&transaction(&id)?);
    let status = if found.transactions.is_empty() { StatusCode::NOT_FOUND } else { StatusCode::OK };
    Ok((status, Json(found)))
}

/// A port-forward and a shell in the pod come from loopback, for which Kubernetes asks who it is. The network does not.
async fn resolve(
    State(ledger): State<Ledger>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path((id, n)): Path<(String, u32)>,
    Json(asked): Json<ResolveView>,
) -> Result<StatusCode, Refused> {
    if !peer.ip().to_canonical().is_loopback() {
        let why = "an effect is resolved from the router's own machine: use `kubectl port-forward`, or `kubectl exec`\n";
        return Err((StatusCode::FORBIDDEN, why.to_owned()));
    }
    let id = transaction(&id)?;
    let resolution = Resolution::from(asked.r#as);
    ledger.resolve(id, n, resolution, &asked.note).await.map_err(|error| refused(&error))?;
    tracing::info!(%id, n, ?resolution, "a person resolved an unknown effect");
    Ok(StatusCode::NO_CONTENT)
}

fn transaction(id: &str) -> Result<TransactionId, Refused> {
    id.parse()
        .map_err(|_| (StatusCode::BAD_REQUEST, format!("{id:?} is no transaction's id, which is a UUID\n")))
}

fn refused(error: &ResolveError) -> Refused {
    let status = match error {
        ResolveError::NotFound { .. } => StatusCode::NOT_FOUND,
        ResolveError::NotUnknown { .. } => StatusCode::CONFLICT,
        ResolveError::Note => StatusCode::BAD_REQUEST,
        ResolveError::Refused(Refusal::Closed | Refusal::Disk(_)) => StatusCode::SERVICE_UNAVAILABLE,
        ResolveError::Refused(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{error}\n"))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use bulkhead_ledger::{Intent, Options, Outcome, SystemClock};
    use http_body_util::BodyExt;
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;

    const ID: &str = "018f0000-0000-8000-8000-000000000001";

    /// One effect that is unknown and one that is decided, of two transactions.
    async fn ledger() -> Ledger {
        let ledger = Ledger::volatile(&Options::new(""), SystemClock::start()).expect("needs no disk");
        for (id, outcome) in [
            (ID, Outcome::Unknown),
            ("018f0000-0000-8000-8000-000000000002", Outcome::Answered { status: Some(200) }),
        ] {
            let id = id.parse().expect("is a UUID");
            let intent = Intent { id, n: 1, attempt: 1, cell: "a".into(), destination: "visa".into() };
            ledger.intend(intent).await.expect("is taken").end(outcome);
        }
        ledger
    }

    async fn ask(ledger: &Ledger, peer: [u8; 4], method: &str, path: &str, body: &str) -> (u16, String) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .extension(ConnectInfo(SocketAddr::from((peer, 1))))
            .body(Body::from(body.to_owned()))
            .expect("is valid");
        let answer = routes(ledger.clone()).oneshot(request).await.expect("is answered");
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.expect("arrives").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    const HERE: [u8; 4] = [127, 0, 0, 1];
    const ELSEWHERE: [u8; 4] = [10, 0, 0, 1];

    #[tokio::test]
    async fn anybody_may_list_and_show() {
        let ledger = ledger().await;
        let check = async |path: &str, expected: u16, transactions: usize| {
            let (status, body) = ask(&ledger, ELSEWHERE, "GET", path, "").await;
            assert_eq!(status, expected, "{path}: {body}");
            let view: Value = serde_json::from_str(&body).expect("is JSON");
            assert_eq!(view["transactions"].as_array().map(Vec::len), Some(transactions), "{path}: {body}");
        };
        check("/v1/ledger", 200, 2).await;
        check("/v1/ledger?limit=1", 200, 1).await;
        check("/v1/ledger?state=unknown", 200, 1).await;
        check("/v1/ledger?state=open", 200, 0).await;
        check(&format!("/v1/ledger/{ID}"), 200, 1).await;
        check("/v1/ledger/018f0000-0000-8000-8000-000000000003", 404, 0).await;
        assert_eq!(ask(&ledger, ELSEWHERE, "GET", "/v1/ledger?state=lost", "").await.0, 400);
        assert_eq!(ask(&ledger, ELSEWHERE, "GET", "/v1/ledger/7", "").await.0, 400);
    }

    #[tokio::test]
    async fn only_somebody_on_this_machine_resolves() {
        let ledger = ledger().await;
        let path = format!("/v1/ledger/{ID}/1/resolve");
        let said = r#"{"as": "answered", "note": "the scheme has it"}"#;
        assert_eq!(ask(&ledger, ELSEWHERE, "POST", &path, said).await.0, 403);
        assert!(ask(&ledger, HERE, "GET", &format!("/v1/ledger/{ID}"), "").await.1.contains("\"unknown\""));
        assert_eq!(ask(&ledger, HERE, "POST", &path, said).await, (204, String::new()));
        let (_, shown) = ask(&ledger, HERE, "GET", &format!("/v1/ledger/{ID}"), "").await;
        assert!(shown.contains("\"decided\"") && shown.contains("the scheme has it"), "{shown}");
        assert_eq!(ask(&ledger, HERE, "POST", &path, said).await.0, 409);
    }

    #[tokio::test]
    async fn what_cannot_be_resolved_is_refused_in_words() {
        let ledger = ledger().await;
        let path = format!("/v1/ledger/{ID}/1/resolve");
        for (path, said, expected) in [
            (&*path, r#"{"as": "answered", "note": ""}"#, 400),
            (&*path, r#"{"as": "unknown", "note": "x"}"#, 422),
            (&*path, r#"{"as": "answered", "note": "x", "who": "me"}"#, 422),
            (&format!("/v1/ledger/{ID}/2/resolve"), r#"{"as": "answered", "note": "x"}"#, 404),
        ] {
            let (status, body) = ask(&ledger, HERE, "POST", path, said).await;
            assert_eq!(status, expected, "{said}: {body}");
            assert!(!body.is_empty());
        }
    }
}
