//! The providers of Terraform and OpenTofu, kept once for all modules.
//!
//! ```text
//! {WorkingDirectory}/plugincache/terraform/{host}/{namespace}/{type}/{version}/{platform}/   TF_PLUGIN_CACHE_DIR
//! {WorkingDirectory}/plugincache/terraform.lock         held by whoever runs an init, until its script has ended
//! {WorkingDirectory}/plugincache/terraform.unfinished   the packages that were there before an init began
//! ```
//! and the same for `tofu`. An init links the packages that it finds there into the module and downloads the others
//! into it. The engines take no care of each other while they do that, so these rules keep a cache whole:
//!
//! * One init at a time, over all runners that share the working directory.
//! * A package is never written twice. An engine would unpack a package again, over the files that other modules are
//!   running at that moment, in two cases (tried with Terraform 1.11: "text file busy", and half a program for whoever
//!   starts it meanwhile). When the module's dependency lock file does not list a provider, it does so to learn all of
//!   its checksums: `TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE` makes it take the package as it is, and the entry that
//!   it adds has the checksum of this platform alone. No entry that the repository has is changed by that. When the
//!   lock file lists the provider, but not the checksum of the package that is here, the cache is not used ([`PluginCache::mismatch`]).
//!   An init without the cache would write through the links that an earlier one has left in the module, so those are
//!   removed first ([`PluginCache::unlink`]).
//! * What an init that did not complete has added is removed before the next one begins: it may be half a package, and
//!   nobody else can have linked it yet.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::base::confined_dir::{open_regular, read_limited};
use crate::base::digest::hex;
use crate::base::files::{create_private_dir_all, write_private_atomic};
use crate::base::lock::{self, LockMode};
use crate::engines::hcl_values;

/// Of a dependency lock file; those of the largest estates have some hundred kilobytes.
const LARGEST_LOCK_FILE: u64 = 16 * 1024 * 1024;

/// The folder below the working directory.
const FOLDER: &str = "plugincache";
/// host / namespace / type / version / platform
const DEPTH: usize = 5;
/// What the engines call it.
pub const DIRECTORY_VARIABLE: &str = "TF_PLUGIN_CACHE_DIR";
pub const KEEP_PACKAGES_VARIABLE: &str = "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE";

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct PluginCacheError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PluginCacheError {
    let path = path.to_owned();
    move |source| PluginCacheError { action, path, source }
}

/// The cache of one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginCache {
    directory: PathBuf,
}

impl PluginCache {
    pub fn of(program: &str, working_directory: &Path) -> Self {
        Self { directory: working_directory.join(FOLDER).join(program) }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Lists what was there before an init; removed when that has completed.
    pub fn unfinished_path(&self) -> PathBuf {
        self.directory.with_extension("unfinished")
    }

    fn lock_path(&self) -> PathBuf {
        self.directory.with_extension("lock")
    }

    /// The lock, or None while another init holds it. It is given back when the last copy of the file is closed.
    /// Whoever waits is told `who` has it.
    pub fn try_lock(&self, who: &str) -> Result<Option<File>, PluginCacheError> {
        create_private_dir_all(&self.directory).map_err(failed("create", &self.directory))?;
        let path = self.lock_path();
        let held = lock::try_lock(&path, LockMode::Alone).map_err(failed("lock", &path))?;
        Ok(held.inspect(|held| lock::sign(held, who)))
    }

    /// Who has the lock, as far as is known.
    pub fn holder(&self) -> String {
        lock::holder(&self.lock_path()).unwrap_or_else(|| "another module".to_owned())
    }

    /// Clears up after an init that did not complete, and makes ready for the next. To be called with the lock held.
    /// Returns the packages that were removed.
    pub fn begin(&self) -> Result<Vec<String>, PluginCacheError> {
        let path = self.unfinished_path();
        let mut there = BTreeSet::new();
        packages(&self.directory, DEPTH, "", &mut there).map_err(failed("look into", &self.directory))?;
        let mut removed = Vec::new();
        match fs::read(&path) {
            Ok(text) => {
                let before: BTreeSet<String> =
                    serde_json::from_slice(&text).map_err(|error| failed("read", &path)(error.into()))?;
                for package in there.difference(&before) {
                    let folder = self.directory.join(package);
                    // Of a package that is unpacked in a mirror, the cache has a link.
                    let gone = match folder.is_symlink() {
                        true => fs::remove_file(&folder),
                        false => fs::remove_dir_all(&folder),
                    };
                    gone.map_err(failed("remove", &folder))?;
                    removed.push(package.clone());
                }
                there.retain(|package| before.contains(package));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &path)(error)),
        }
        let text = serde_json::to_vec(&there).map_err(|error| failed("write", &path)(error.into()))?;
        write_private_atomic(&path, &text).map_err(failed("write", &path))?;
        Ok(removed)
    }

    /// A provider of which the cache has another package than the module's dependency lock file wants.
    pub fn mismatch(&self, module: &Path) -> Result<Option<String>, PluginCacheError> {
        let path = module.join(".terraform.lock.hcl");
        let text = match open_regular(&path).and_then(|file| read_limited(file, LARGEST_LOCK_FILE)) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let body = hcl_edit::parser::parse_body(&text)
            .map_err(|error| failed("read", &path)(io::Error::other(error.message().to_owned())))?;
        for block in body.blocks().filter(|block| block.ident.as_str() == "provider") {
            let [label] = block.labels.as_slice() else { continue };
            let attribute = |name: &str| block.body.get_attribute(name).map(|attribute| &attribute.value);
            let Some(version) = attribute("version").and_then(hcl_values::string) else { continue };
            let below = Path::new(label.as_str()).join(version);
            if !below.components().all(|part| matches!(part, Component::Normal(_))) {
                continue;
            }
            let folder = self.directory.join(below);
            let mut here = BTreeSet::new();
            packages(&folder, 1, "", &mut here).map_err(failed("look into", &folder))?;
            let listed = attribute("hashes").and_then(|hashes| hashes.as_array());
            let listed: Vec<String> = listed.into_iter().flatten().filter_map(hcl_values::string).collect();
            for platform in here {
                let package = folder.join(platform);
                let hash = hash(&package).map_err(failed("read", &package))?;
                if !listed.contains(&hash) {
                    return Ok(Some(label.as_str().to_owned()));
                }
            }
        }
        Ok(None)
    }

    /// Removes a module's links into the cache; `data` is the engine's folder in the module, `.terraform`.
    pub fn unlink(&self, data: &Path) -> Result<(), PluginCacheError> {
        let folder = data.join("providers");
        let mut linked = BTreeSet::new();
        packages(&folder, DEPTH, "", &mut linked).map_err(failed("look into", &folder))?;
        for package in linked {
            let link = folder.join(package);
            if fs::read_link(&link).is_ok_and(|target| target.starts_with(&self.directory)) {
                fs::remove_file(&link).map_err(failed("remove", &link))?;
            }
        }
        Ok(())
    }
}

/// The folders `depth` levels below a folder, by their paths below it.
fn packages(folder: &Path, depth: usize, below: &str, into: &mut BTreeSet<String>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if depth == 1 {
            into.insert(path);
        } else if entry.file_type()?.is_dir() {
            packages(&entry.path(), depth - 1, &path, into)?;
        }
    }
    Ok(())
}

/// The checksum of an unpacked package as dependency lock files have it: `h1:` and the SHA-256 of a list of the
/// SHA-256 of each file, ordered by name.
fn hash(package: &Path) -> io::Result<String> {
    let mut names = BTreeSet::new();
    files(package, "", &mut names)?;
    let mut list = Sha256::new();
    for name in names {
        let mut file = Sha256::new();
        io::copy(&mut File::open(package.join(&name))?, &mut file)?;
        list.update(format!("{}  {name}\n", hex(&file.finalize())));
    }
    Ok(format!("h1:{}", STANDARD.encode(list.finalize())))
}

fn files(folder: &Path, below: &str, into: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            files(&entry.path(), &path, into)?;
        } else {
            into.insert(path);
        }
    }
    Ok(())
}

/// Whether the user's own configuration of the engine names a plugin cache. The variable would win over it.
/// `environment` looks up a variable of the engine's environment.
pub fn is_configured(environment: impl Fn(&str) -> Option<PathBuf>) -> bool {
    let given = ["TF_CLI_CONFIG_FILE", "TERRAFORM_CONFIG"].into_iter().filter_map(&environment).next();
    let files = match (given, environment("HOME")) {
        (Some(file), _) => vec![file],
        (None, None) => Vec::new(),
        (None, Some(home)) => {
            let mut files: Vec<_> =
                [".terraformrc", ".tofurc", ".config/opentofu/tofurc"].map(|name| home.join(name)).into();
            let more = fs::read_dir(home.join(".terraform.d")).into_iter().flatten().flatten();
            let more = more.map(|entry| entry.path()).filter(|path| {
                let name = path.to_string_lossy();
                name.ends_with(".tfrc") || name.ends_with(".tfrc.json")
            });
            files.extend(more);
            files
        }
    };
    let names_one = |text: String| {
        let mut lines = text.lines().map(str::trim_start);
        lines.any(|line| !line.starts_with(['#', '/']) && line.contains("plugin_cache_dir"))
    };
    files.iter().any(|file| fs::read_to_string(file).is_ok_and(names_one))
}

#[cfg(test)]
mod tests;
