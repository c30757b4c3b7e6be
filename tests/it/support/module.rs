//! A module folder, and the requests with which a server has it fetched.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use hawser::base::process::Inherited;
use hawser::engines::Engines;
use hawser::settings::model::WorkingDirectorySettings;
use hawser::sources::{Cache, Fetcher};
use hawser::workspace::{Workspace, WorkspaceError};
use hawser_contract::requests::{ExtraFile, GetModule};
use hawser_contract::{Metadata, Source, SourceRevisionType, SourceType};
use tokio_util::sync::CancellationToken;

use super::git::Repo;

pub(crate) fn git_source(url: &str, revision: &str) -> Source {
    Source {
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
        source_url: url.to_owned(),
        source_revision: revision.to_owned(),
        source_definitive_revision: None,
        source_semantic_version: None,
    }
}

pub(crate) fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// Fetches without a log, and without the settings of the machine's git.
pub(crate) fn fetcher(scratch: &Path) -> Fetcher<'static> {
    Fetcher::new(http(), scratch.to_owned(), &|_| {}, CancellationToken::new())
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
}

pub(crate) trait WithVariable {
    /// Sets a variable for every git process.
    fn env(self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self;
}

impl WithVariable for Fetcher<'_> {
    fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        let variables = self.host.into_variables().into_iter().chain([(name.into(), value.into())]);
        self.host = Inherited::new(variables);
        self
    }
}

pub(crate) fn is_module_file(name: &str) -> bool {
    Engines::default().iter().any(|engine| engine.uses_file(name))
}

/// A runner's working directory with one module in it.
pub(crate) struct Module {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) metadata: Metadata,
    pub(crate) fetcher: Fetcher<'static>,
    pub(crate) log: Mutex<Vec<String>>,
    pub(crate) cancel: CancellationToken,
}

impl Module {
    pub(crate) fn new() -> Self {
        Self::in_subdirectory("")
    }

    pub(crate) fn in_subdirectory(subdirectory: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let metadata = Metadata {
            stack_name: "stack".into(),
            namespace_name: "namespace".into(),
            module_name: "module".into(),
            module_id: uuid::Uuid::nil(),
            source_subdirectory: Some(subdirectory.into()),
        };
        let fetcher = fetcher(&folder.path().join("work/.temp"));
        let cancel = fetcher.cancel.clone();
        Self { folder, metadata, fetcher, log: Mutex::default(), cancel }
    }

    /// With a cache that may be shared.
    pub(crate) fn cached(cache: &Path) -> Self {
        let mut module = Self::new();
        module.fetcher.cache = Some(Cache { folder: cache.to_owned(), max_bytes: 1024 * 1024 * 1024 });
        module
    }

    pub(crate) fn settings(&self) -> WorkingDirectorySettings {
        WorkingDirectorySettings {
            working_directory: self.folder.path().join("work"),
            temp_directory: self.folder.path().join("work/.temp"),
        }
    }

    pub(crate) fn workspace(&self) -> Workspace {
        Workspace::new(&self.settings(), &self.metadata).unwrap()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("work/stack/namespace/module")
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.folder.path().join("work/.hawser/checkout/stack/namespace/module")
    }

    pub(crate) async fn get(&self, source: &Source, request: &GetModule) -> Result<String, WorkspaceError> {
        let log = |line: &str| self.log.lock().unwrap().push(line.to_owned());
        let fetcher = Fetcher { log: &log, ..self.fetcher.clone() };
        self.workspace().get_module(source, request, &is_module_file, &fetcher).await
    }

    pub(crate) async fn get_main(&self, repo: &Repo) -> Result<String, WorkspaceError> {
        self.get(&git_source(&repo.url(), "main"), &GetModule::default()).await
    }

    /// Requests a commit as the server does after GetDefinitiveRevision.
    pub(crate) async fn get_commit(&self, repo: &Repo, commit: &str) -> Result<String, WorkspaceError> {
        let source =
            Source { source_definitive_revision: Some(commit.to_owned()), ..git_source(&repo.url(), "main") };
        self.get(&source, &GetModule::default()).await
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    pub(crate) fn write(&self, path: &str, contents: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    /// The text of a file below the module root, if there is one.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root().join(path)).ok()
    }
}

pub(crate) fn extra(name: &str, contents: &str, overwrite: bool) -> ExtraFile {
    ExtraFile {
        file_name: name.into(),
        contents: contents.into(),
        overwrite,
        source: serde_json::Value::Null,
    }
}

pub(crate) fn with_extra(files: &[ExtraFile]) -> GetModule {
    GetModule { extra_files: files.to_vec(), ..GetModule::default() }
}

pub(crate) fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}
