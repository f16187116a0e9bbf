use bulkhead_process::Port;
use http::Method;

use super::*;
use crate::caller::{CallError, Caller};

struct Running {
    issuer: Issuer,
    caller: Caller,
    control: Caller,
    _port: Port,
}

async fn start() -> Running {
    let issuer = Issuer::new(Config {
        behaviour: Behaviour { delay_ms: 0, ..Behaviour::default() },
        ..Config::default()
    });
    let port = Port::free().expect("one is free");
    let control = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
    let control_address = control.local_addr().expect("is bound");
    tokio::spawn(issuer.clone().serve(port.address, Shutdown::new()));
    tokio::spawn(issuer.clone().serve_control(control, Shutdown::new()));
    let running = Running {
        issuer,
        caller: Caller::new(port.address),
        control: Caller::new(control_address),
        _port: port,
    };
    running.until_it_listens().await;
    running
}

impl Running {
    /// A message without a key is answered and not counted.
    async fn until_it_listens(&self) {
        while self.caller.call(Method::POST, "/", &[], Bytes::new()).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    async fn authorise(&self, key: &str) -> Result<Value, CallError> {
        let field = (HeaderName::from_static("idempotency-key"), key);
        let body = json!({"reference": "order", "amount": 12}).to_string();
        let (status, body) = self.caller.call(Method::POST, "/authorise", &[field], body.into()).await?;
        assert_eq!(status, StatusCode::OK);
        Ok(serde_json::from_slice(&body).expect("is JSON"))
    }

    async fn control(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let (status, body) = self.control.call(method, path, &[], body).await.expect("is answered");
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn behave(&self, change: Value) {
        assert_eq!(self.control(Method::PUT, "/control", change).await.0, StatusCode::OK);
    }

    fn executed(&self) -> u64 {
        self.issuer.book().stats().executed
    }
}

#[tokio::test]
async fn an_answer_says_who_answers_what() {
    let running = start().await;
    let answer = running.authorise("x/1").await.expect("is answered");
    let expected = json!({
        "approved": true, "issuer": "issuer", "key": "x/1", "reference": "order", "amount": 12,
    });
    assert_eq!(answer, expected);
    running.behave(json!({"answer": "decline"})).await;
    assert_eq!(running.authorise("x/2").await.expect("is answered")["approved"], false);
}

#[tokio::test]
async fn a_duplicate_is_executed_again_only_where_nobody_checks() {
    let running = start().await;
    for _ in 0..2 {
        let answer = running.authorise("x/1").await.expect("is answered");
        assert_eq!(answer.get("duplicate"), None);
    }
    assert_eq!(running.executed(), 2);
    running.behave(json!({"duplicateCheck": true})).await;
    assert_eq!(running.authorise("x/1").await.expect("is answered")["duplicate"], true);
    assert_eq!(running.executed(), 2);
}

#[tokio::test]
async fn closing_before_or_after_the_execution_gives_no_answer_either_way() {
    let running = start().await;
    running.behave(json!({"answer": "closeBefore"})).await;
    running.authorise("x/1").await.expect_err("is closed");
    assert_eq!(running.executed(), 0);
    running.behave(json!({"answer": "close"})).await;
    running.authorise("x/1").await.expect_err("is closed");
    assert_eq!(running.executed(), 1);
}

#[tokio::test]
async fn silence_has_an_effect_and_no_answer() {
    let running = start().await;
    running.behave(json!({"answer": "silent"})).await;
    tokio::select! {
        answer = running.authorise("x/1") => unreachable!("{answer:?}"),
        () = async { while running.executed() == 0 { tokio::task::yield_now().await } } => {}
    }
}

#[tokio::test]
async fn refusing_ends_kept_connections_and_can_be_taken_back() {
    let running = start().await;
    running.authorise("x/1").await.expect("is answered");
    running.behave(json!({"answer": "refuse"})).await;
    while !matches!(running.authorise("x/2").await, Err(CallError::Connect(..))) {
        tokio::task::yield_now().await;
    }
    running.behave(json!({"answer": "approve"})).await;
    running.until_it_listens().await;
    running.authorise("x/3").await.expect("is answered");
}

#[tokio::test]
async fn counts_are_read_and_reset_over_http() {
    let running = start().await;
    running.behave(json!({"executes": false})).await;
    running.authorise("x/1").await.expect("is answered");
    let (_, stats) = running.control(Method::GET, "/stats", Value::Null).await;
    assert_eq!((&stats["received"], &stats["executed"]), (&json!(1), &json!(0)));
    let (_, executions) = running.control(Method::GET, "/executions", Value::Null).await;
    assert_eq!(executions["x/1"]["reference"], "order");
    running.control(Method::DELETE, "/stats", Value::Null).await;
    let (_, stats) = running.control(Method::GET, "/stats", Value::Null).await;
    assert_eq!(stats["received"], 0);
    let (status, _) = running.control(Method::PUT, "/control", json!({"answer": "maybe"})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}
