//! The issuer's behaviour and counts over HTTP. What they mean is the issuer's.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::Value;

use super::{Behaviour, Book, Issuer, Stats};

pub(super) fn router(issuer: Issuer) -> Router {
    Router::new()
        .route("/control", get(behaviour).put(behave))
        .route("/stats", get(stats).delete(reset))
        .route("/executions", get(executions))
        .route("/readyz", get(|| async { "ready\n" }))
        .with_state(issuer)
}

async fn behaviour(State(issuer): State<Issuer>) -> Json<Behaviour> {
    Json(issuer.behaviour())
}

async fn behave(
    State(issuer): State<Issuer>,
    Json(change): Json<Value>,
) -> Result<Json<Behaviour>, (StatusCode, String)> {
    let changed = issuer
        .behaviour()
        .changed(change)
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("the change is malformed: {error}\n")))?;
    issuer.behave(changed.clone());
    Ok(Json(changed))
}

async fn stats(State(issuer): State<Issuer>) -> Json<Stats> {
    Json(issuer.book().stats())
}

async fn reset(State(issuer): State<Issuer>) {
    *issuer.book() = Book::default();
}

async fn executions(State(issuer): State<Issuer>) -> Json<Value> {
    let executions = issuer.book().executions();
    Json(serde_json::json!(executions))
}
