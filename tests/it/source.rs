//! Sources, module directories and extra files, with real Git repositories.

mod checkout;
mod extra_files;
mod resolving;
mod workspace;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use hawser::contract::requests::{ExtraFile, GetModule};
use hawser::contract::{Metadata, Source, SourceRevisionType, SourceType};
use hawser::settings::model::WorkingDirectorySettings;
use hawser::source::Fetcher;
use hawser::workspace::{Workspace, WorkspaceError};
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
