//! What is meant by SOURCE: a URL goes to the runner as it is, a directory becomes its repository.

use std::path::{Path, PathBuf};

use super::Failure;

/// A source for the runner, with the directory below its root if SOURCE was one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobSource {
    pub(super) url: String,
    pub(super) subdirectory: Option<String>,
}

pub(super) fn locate(source: &str) -> Result<JobSource, Failure> {
    let path = Path::new(source);
    if !path.exists() {
        // `https://…`, `git@host:…`: anything with a colon is git's to judge.
        return if source.contains(':') {
            Ok(JobSource { url: source.to_owned(), subdirectory: None })
        } else {
            Err(Failure::usage(format!("{source:?} is neither a directory nor a URL")))
        };
    }
    let path = path
        .canonicalize()
        .map_err(|error| Failure::usage(format!("cannot look at the directory {source:?}: {error}")))?;
    let Some(root) = repository_root(&path) else {
        return Err(Failure::usage(format!("{source:?} is in no git repository"))
            .hint("a runner fetches its source with git; `hawser local` takes a plain directory"));
    };
    let below = path.strip_prefix(&root).map(Path::to_path_buf).unwrap_or_default();
    let text = |path: PathBuf| {
        path.into_os_string()
            .into_string()
            .map_err(|path| Failure::usage(format!("the name of {} is not UTF-8", path.display())))
    };
    let subdirectory = if below.as_os_str().is_empty() { None } else { Some(text(below)?) };
    Ok(JobSource { url: text(root)?, subdirectory })
}

/// The directory itself if it is a bare repository, else the nearest one upwards with a `.git`.
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
    fn a_url_stays_and_a_directory_becomes_its_repository_with_the_rest_as_subdirectory() {
        let url = "git@example.org:a/b.git";
        assert_eq!(locate(url).unwrap(), JobSource { url: url.into(), subdirectory: None });
        let home = tempfile::tempdir().unwrap();
        let root = home.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        assert!(locate(root.join("a/b").to_str().unwrap()).is_err(), "no repository");
        std::fs::create_dir(root.join(".git")).unwrap();
        let found = locate(root.join("a/b").to_str().unwrap()).unwrap();
        assert_eq!(found, JobSource { url: root.to_str().unwrap().into(), subdirectory: Some("a/b".into()) });
        assert_eq!(locate(root.to_str().unwrap()).unwrap().subdirectory, None);
        assert!(locate("no-such-directory").is_err());
    }
}
