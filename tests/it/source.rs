//! Sources, module directories and extra files, with real Git repositories.

mod cache;
mod checkout;
mod extra_files;
mod origin;
mod resolving;
mod state;
mod submodules;
mod workspace;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use hawser::settings::model::WorkingDirectorySettings;
use hawser::sources::Fetcher;
use hawser::workspace::{Workspace, WorkspaceError};
use hawser_contract::requests::{ExtraFile, GetModule};
use hawser_contract::{Metadata, Source, SourceRevisionType, SourceType};
use tokio_util::sync::CancellationToken;

use crate::support::git::Repo;

fn git_source(url: &str, revision: &str) -> Source {
    Source {
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
        source_url: url.to_owned(),
        source_revision: revision.to_owned(),
        source_definitive_revision: None,
        source_semantic_version: None,
    }
}

fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

fn fetcher(scratch: &Path) -> Fetcher {
    Fetcher::new(http(), &[], scratch)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
}

/// A runner's working directory with one module in it.
struct Module {
    folder: tempfile::TempDir,
    metadata: Metadata,
    fetcher: Fetcher,
    log: Mutex<Vec<String>>,
    cancel: CancellationToken,
}

impl Module {
    fn new() -> Self {
        Self::in_subdirectory("")
    }

    fn in_subdirectory(subdirectory: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let metadata = Metadata {
            stack_name: "stack".into(),
            namespace_name: "namespace".into(),
            module_name: "module".into(),
            module_id: uuid::Uuid::nil(),
            source_subdirectory: Some(subdirectory.into()),
        };
        let fetcher = fetcher(&folder.path().join("work/.temp"));
        Self { folder, metadata, fetcher, log: Mutex::default(), cancel: CancellationToken::new() }
    }

    /// With a cache that it may share with others.
    fn cached(cache: &Path) -> Self {
        let mut module = Self::new();
        module.fetcher = module.fetcher.cache(cache, 1024 * 1024 * 1024);
        module
    }

    fn settings(&self) -> WorkingDirectorySettings {
        WorkingDirectorySettings {
            working_directory: self.folder.path().join("work"),
            temp_directory: self.folder.path().join("work/.temp"),
        }
    }

    fn workspace(&self) -> Workspace {
        Workspace::new(&self.settings(), &self.metadata).unwrap()
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("work/stack/namespace/module")
    }

    fn staging(&self) -> PathBuf {
        self.folder.path().join("work/.hawser/checkout/stack/namespace/module")
    }

    async fn get(&self, source: &Source, request: &GetModule) -> Result<String, WorkspaceError> {
        let log = |line: &str| self.log.lock().unwrap().push(line.to_owned());
        self.workspace().get_module(source, request, &self.fetcher, &log, &self.cancel).await
    }

    async fn get_main(&self, repo: &Repo) -> Result<String, WorkspaceError> {
        self.get(&git_source(&repo.url(), "main"), &GetModule::default()).await
    }

    /// Asks for a commit as the server does after GetDefinitiveRevision.
    async fn get_commit(&self, repo: &Repo, commit: &str) -> Result<String, WorkspaceError> {
        let source =
            Source { source_definitive_revision: Some(commit.to_owned()), ..git_source(&repo.url(), "main") };
        self.get(&source, &GetModule::default()).await
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    fn write(&self, path: &str, contents: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    /// The text of a file below the module root, if there is one.
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root().join(path)).ok()
    }
}

/// Serves a repository to whoever logs in as `user` with `hunter2`, as plain files: the most a server can be asked
/// for is everything.
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

fn extra(name: &str, contents: &str, overwrite: bool) -> ExtraFile {
    ExtraFile {
        file_name: name.into(),
        contents: contents.into(),
        overwrite,
        source: serde_json::Value::Null,
    }
}

fn with_extra(files: &[ExtraFile]) -> GetModule {
    GetModule { extra_files: files.to_vec(), ..GetModule::default() }
}

fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}
