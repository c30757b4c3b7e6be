//! Sources and their checkouts, with real Git repositories.

mod cache;
mod checkout;
mod origin;
mod resolving;
mod submodules;

use std::fs;

use crate::support::git::Repo;

/// Serves a repository as plain files, with the login `user` and `hunter2`. Such a server can only serve the whole history.
async fn serve_files(repo: &Repo) -> String {
    use axum::http::{HeaderMap, StatusCode, Uri};
    repo.git(&["update-server-info"]);
    let folder = repo.path().join(".git");
    let answer = move |headers: HeaderMap, uri: Uri| async move {
        // base64 of `user:hunter2`
        if headers.get("authorization").is_none_or(|it| it != "Basic dXNlcjpodW50ZXIy") {
            return Err((StatusCode::UNAUTHORIZED, [("WWW-Authenticate", "Basic realm=\"x\"")]));
        }
        let path = uri.path().trim_start_matches("/repo/");
        fs::read(folder.join(path)).map_err(|_| (StatusCode::NOT_FOUND, [("X-Missing", "1")]))
    };
    resolving::serve(axum::Router::new().fallback(answer)).await.replace("http://", "http://user:hunter2@")
        + "/repo"
}
