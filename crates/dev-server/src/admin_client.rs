//! A client of the admin API.

use hawser_contract::requests::CancelKind;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::admin::{ADMIN_PATH, FollowAnswer};
use crate::job_record::JobSnapshot;
use crate::job_spec::JobSpec;

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("no hub is running at {url}: {}", cause(source))]
    NotRunning { url: String, source: reqwest::Error },
    #[error("the hub at {url} rejected the admin token")]
    WrongToken { url: String },
    #[error("the server at {url} is not a hub with an admin API")]
    NoHub { url: String },
    #[error("{0}")]
    UnknownJob(String),
    #[error("the hub refused the request: {0}")]
    Refused(String),
    #[error("invalid response from the hub at {url}: {source}")]
    Unreadable { url: String, source: reqwest::Error },
    #[error("failed to create an HTTP client: {0}")]
    Client(reqwest::Error),
}

/// The root cause of an error. The client's own text only states that a request failed.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Calls the admin API of a hub.
#[derive(Debug, Clone)]
pub struct AdminClient {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl AdminClient {
    /// `url` is the address of the hub, with or without a trailing slash.
    pub fn new(url: &str, token: &str) -> Result<Self, AdminError> {
        // The client requires a TLS provider, even for http. A second call has no effect.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().map_err(AdminError::Client)?;
        Ok(Self { http, url: url.trim_end_matches('/').to_owned(), token: token.to_owned() })
    }

    pub async fn submit(&self, spec: &JobSpec) -> Result<Uuid, AdminError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Submitted {
            job_id: Uuid,
        }
        let submitted: Submitted = self.read(self.send(Method::POST, "", Some(spec)).await?).await?;
        Ok(submitted.job_id)
    }

    pub async fn list(&self) -> Result<Vec<JobSnapshot>, AdminError> {
        self.read(self.send(Method::GET, "", None::<&Value>).await?).await
    }

    /// Waits for news since the last response. May return without any.
    pub async fn follow(&self, job: Uuid, from: usize, seen: &str) -> Result<FollowAnswer, AdminError> {
        let path = format!("/{job}/follow?from={from}&seen={seen}");
        self.read(self.send(Method::GET, &path, None::<&Value>).await?).await
    }

    pub async fn cancel(&self, job: Uuid, kind: CancelKind) -> Result<(), AdminError> {
        self.send(Method::POST, &format!("/{job}/cancel"), Some(&json!({ "kind": kind }))).await.map(drop)
    }

    pub async fn approve(&self, job: Uuid) -> Result<(), AdminError> {
        self.send(Method::POST, &format!("/{job}/approve"), None::<&Value>).await.map(drop)
    }

    pub async fn reject(&self, job: Uuid) -> Result<(), AdminError> {
        self.send(Method::POST, &format!("/{job}/reject"), None::<&Value>).await.map(drop)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<reqwest::Response, AdminError> {
        let url = self.url.clone();
        let mut request =
            self.http.request(method, format!("{url}{ADMIN_PATH}{path}")).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(source) => return Err(AdminError::NotRunning { url, source }),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        // The refusal matters more than an error while reading its body.
        let text = response.text().await.unwrap_or_default();
        Err(match status {
            StatusCode::UNAUTHORIZED => AdminError::WrongToken { url },
            StatusCode::NOT_FOUND if text.contains("job") => AdminError::UnknownJob(text),
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => AdminError::NoHub { url },
            _ => AdminError::Refused(if text.is_empty() { status.to_string() } else { text }),
        })
    }

    async fn read<T: DeserializeOwned>(&self, response: reqwest::Response) -> Result<T, AdminError> {
        let url = self.url.clone();
        response.json().await.map_err(|source| AdminError::Unreadable { url, source })
    }
}
