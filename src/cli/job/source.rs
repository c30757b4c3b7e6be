//! Resolves SOURCE: a URL is passed to the runner unchanged, a directory becomes the repository that contains it.

use std::path::{Path, PathBuf};

use hawser_contract::EngineName;

use super::Failure;
use crate::local::area;

/// A source for the runner, with the directory below its root if SOURCE is a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobSource {
    pub(super) url: String,
    pub(super) subdirectory: Option<String>,
}

pub(super) fn resolve(source: &str) -> Result<JobSource, Failure> {
    let path = Path::new(source);
    if !path.exists() {
        // git checks anything with a colon: `https://…`, `git@host:…`.
        return if source.contains(':') {
            Ok(JobSource { url: source.to_owned(), subdirectory: None })
        } else {
            Err(Failure::usage(format!("{source:?} is neither a directory nor a URL")))
        };
    }
    let path = path
        .canonicalize()
        .map_err(|error| Failure::usage(format!("cannot open the directory {source:?}: {error}")))?;
    let Some(root) = repository_root(&path) else {
        return Err(Failure::usage(format!("{source:?} is not in a git repository"))
            .hint("a runner fetches its source with git; use `hawser local` for a plain directory"));
    };
    let below = path.strip_prefix(&root).map(Path::to_path_buf).unwrap_or_default();
    let text = |path: PathBuf| {
        path.into_os_string()
            .into_string()
            .map_err(|path| Failure::usage(format!("the path {} is not UTF-8", path.display())))
    };
    let subdirectory = if below.as_os_str().is_empty() { None } else { Some(text(below)?) };
    Ok(JobSource { url: text(root)?, subdirectory })
}

/// The engine for SOURCE, chosen as in `hawser local`: the first installed one that fits. The files of a URL are unknown;
/// they count as those of Terraform and OpenTofu.
pub(super) fn engine(source: &str, subdirectory: Option<&str>) -> EngineName {
    choose(source, subdirectory, area::is_installed)
}

fn choose(source: &str, subdirectory: Option<&str>, installed: impl Fn(&EngineName) -> bool) -> EngineName {
    let directory = Path::new(source).join(subdirectory.unwrap_or_default());
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut fitting = area::fitting_engines(&names.collect::<Vec<_>>());
    if fitting.is_empty() {
        fitting = area::fitting_engines(&["main.tf".into()]);
    }
    // The runner may have an engine that this machine does not have.
    let usual = EngineName::TERRAFORM;
    let fallback = if fitting.contains(&usual) { usual } else { fitting[0].clone() };
    fitting.into_iter().find(installed).unwrap_or(fallback)
}

/// The directory itself if it is a bare repository, otherwise the nearest parent with a `.git`.
fn repository_root(path: &Path) -> Option<PathBuf> {
    if path.join("HEAD").is_file() && path.join("objects").is_dir() && path.join("refs").is_dir() {
        return Some(path.to_owned());
    }
    path.ancestors().find(|directory| directory.join(".git").exists()).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_fits_the_files_of_a_directory() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().to_str().unwrap();
        let nothing = |_: &EngineName| false;
        assert_eq!(choose("https://example.org/x.git", None, nothing), EngineName::TERRAFORM);
        assert_eq!(choose(source, None, nothing), EngineName::TERRAFORM);
        for (name, expected) in [
            ("Pulumi.yaml", EngineName::PULUMI),
            ("main.tofu", EngineName::TOFU),
            ("main.tf", EngineName::TERRAFORM),
        ] {
            let module = home.path().join(format!("with {name}"));
            std::fs::create_dir(&module).unwrap();
            std::fs::write(module.join(name), "").unwrap();
            assert_eq!(choose(source, module.file_name().unwrap().to_str(), nothing), expected, "{name}");
        }
    }

    #[test]
    fn the_default_engine_is_the_one_of_hawser_local() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("main.tf"), "").unwrap();
        for source in ["https://example.org/x.git", home.path().to_str().unwrap()] {
            assert_eq!(choose(source, None, |_| true), EngineName::TOFU);
            assert_eq!(
                choose(source, None, |engine| *engine == EngineName::TERRAFORM),
                EngineName::TERRAFORM
            );
        }
    }

    #[test]
    fn a_url_is_unchanged_and_a_directory_becomes_a_repository_and_a_subdirectory() {
        let url = "git@example.org:a/b.git";
        assert_eq!(resolve(url).unwrap(), JobSource { url: url.into(), subdirectory: None });
        let home = tempfile::tempdir().unwrap();
        let root = home.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        assert!(resolve(root.join("a/b").to_str().unwrap()).is_err(), "no repository");
        std::fs::create_dir(root.join(".git")).unwrap();
        let source = resolve(root.join("a/b").to_str().unwrap()).unwrap();
        assert_eq!(
            source,
            JobSource { url: root.to_str().unwrap().into(), subdirectory: Some("a/b".into()) }
        );
        assert_eq!(resolve(root.to_str().unwrap()).unwrap().subdirectory, None);
        assert!(resolve("no-such-directory").is_err());
    }
}
