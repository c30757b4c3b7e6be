//! Git over real HTTP: serves the files of a repository, which is all that git's dumb protocol needs, and redirects.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::git::git_in;

/// Serves until the runtime ends.
#[derive(Debug, Clone)]
pub(crate) struct GitServer {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone)]
struct Served {
    git: PathBuf,
    moved_to: Option<String>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl GitServer {
    /// Serves a repository as `/repo.git`, and redirects `/moved.git` to that repository of another server.
    pub(crate) async fn start(repository: &Path, moved_to: Option<String>) -> Self {
        git_in(repository, &["update-server-info"]);
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let served = Served { git: repository.join(".git"), moved_to, asked: Arc::clone(&asked) };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(served);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, asked }
    }

    /// The requested paths, with their queries.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(State(served): State<Served>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    served.asked.lock().unwrap().push(format!("{path}{query}"));
    if let (Some(rest), Some(target)) = (path.strip_prefix("/moved.git"), &served.moved_to) {
        let place = format!("{target}{rest}{query}");
        return (StatusCode::FOUND, [(header::LOCATION, place)]).into_response();
    }
    let file = path.strip_prefix("/repo.git/").and_then(|file| std::fs::read(served.git.join(file)).ok());
    file.map_or_else(|| StatusCode::NOT_FOUND.into_response(), IntoResponse::into_response)
}
