//! Why a write did not happen, and what may be done about it.

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("this process no longer holds the lease, so it does not write {object}")]
    NotLeader { object: String },
    #[error("{verb} {object}: {}", message(.source))]
    Api { verb: &'static str, object: String, source: Box<kube::Error> },
}

impl Error {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NotLeader { .. } => "NotLeader",
            Self::Api { .. } if self.is_refusal() => "ApplyRefused",
            Self::Api { .. } => "ApiError",
        }
    }

    /// HTTP status of the API server's answer, where there was one.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Api { source, .. } => code(source),
            Self::NotLeader { .. } => None,
        }
    }

    /// Whether trying the same again can only end the same: the object itself is not acceptable.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.code(), Some(400 | 403 | 413 | 422)) || self.is_too_large()
    }

    /// Whether the object is larger than the API server takes, or than its store does.
    pub(crate) fn is_too_large(&self) -> bool {
        // The store's own limits come through as a 500 with its words.
        const WORDS: [&str; 2] = ["request is too large", "trying to send message larger than max"];
        let Self::Api { source, .. } = self else { return false };
        let said = message(source);
        self.code() == Some(413) || WORDS.iter().any(|words| said.contains(words))
    }
}

pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// What the API server said, without the wrapping.
fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

pub(super) fn failed(verb: &'static str, object: &str, source: kube::Error) -> Error {
    Error::Api { verb, object: object.to_owned(), source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{fixture, kinds};

    #[tokio::test]
    async fn a_refusal_is_told_from_what_may_go_away() {
        let too_large = "etcdserver: request is too large";
        let too_long =
            "rpc error: code = ResourceExhausted desc = trying to send message larger than max (3 vs. 2)";
        for (status, words, refusal) in [
            (422, "no", true),
            (403, "no", true),
            (413, "no", true),
            (409, "no", false),
            (500, "no", false),
            (503, "no", false),
            (500, too_large, true),
            (500, too_long, true),
        ] {
            let (client, _) = fixture::api_server(move |_| Some(fixture::failure(status, words)));
            let object = json!({"metadata": {"name": "x"}});
            let error = fixture::context(client).writer.apply(&kinds::namespace(), None, &object).await;
            assert_eq!(error.expect_err("fails").is_refusal(), refusal, "{status} {words}");
        }
    }
}
