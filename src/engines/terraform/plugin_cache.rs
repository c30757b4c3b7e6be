//! The providers of Terraform and OpenTofu, kept once for all modules.
//!
//! ```text
//! {WorkingDirectory}/plugincache/terraform/{host}/{namespace}/{type}/{version}/{platform}/   TF_PLUGIN_CACHE_DIR
//! {WorkingDirectory}/plugincache/terraform.lock         locked during an init, until its script has ended
//! {WorkingDirectory}/plugincache/terraform.unfinished   the packages that were there before an init began
//! {WorkingDirectory}/plugincache/terraform.hashes       checksums of packages
//! ```
//! and the same for `tofu`, which leaves an empty `{platform}.lock` beside each package. An init links cached packages into the module and downloads missing ones into the cache. The
//! engines do not coordinate this, so the runner does:
//!
//! * Only one init runs at a time, across all runners that share the working directory.
//! * A package is never written twice. An engine would unpack a package again, over files that other modules are running
//!   (with Terraform 1.11: "text file busy", or an incomplete program), in two cases. If the module's dependency lock file does
//!   not list a provider, the engine does so to get all of its checksums. `TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE`
//!   makes it use the package as it is; the entry that it adds only has the checksum of this platform, and existing entries
//!   do not change. If the lock file lists the provider, but not the checksum of the cached package, the cache is not used
//!   ([`PluginCache::mismatch`]). An init without the cache would write through the links of an earlier init in the module, so
//!   those are removed first ([`PluginCache::unlink`]).
//! * Packages of an init that did not complete are removed before the next init: they may be incomplete, and no other module
//!   uses them yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::base::confined_dir::{open_regular, read_limited};
use crate::base::digest::sha256_of;
use crate::base::files::{create_private_dir_all, remove_all, write_private_atomic};
use crate::base::lock::{self, LockMode};
use crate::engines::hcl_values;

/// Large dependency lock files have a few hundred kilobytes.
const LARGEST_LOCK_FILE: u64 = 16 * 1024 * 1024;

/// The folder below the working directory.
const FOLDER: &str = "plugincache";
/// host / namespace / type / version / platform
const DEPTH: usize = 5;
pub const DIRECTORY_VARIABLE: &str = "TF_PLUGIN_CACHE_DIR";
pub const KEEP_PACKAGES_VARIABLE: &str = "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE";

#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {}: {source}", path.display())]
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

    /// Lists the packages before an init; removed when the init has completed.
    pub fn unfinished_path(&self) -> PathBuf {
        self.directory.with_extension("unfinished")
    }

    fn hashes_path(&self) -> PathBuf {
        self.directory.with_extension("hashes")
    }

    fn lock_path(&self) -> PathBuf {
        self.directory.with_extension("lock")
    }

    /// The lock, or `None` while another init holds it. It is released when the last handle of the file is closed. `who` is
    /// recorded as its holder.
    pub fn try_lock(&self, who: &str) -> Result<Option<File>, PluginCacheError> {
        create_private_dir_all(&self.directory).map_err(failed("create", &self.directory))?;
        let path = self.lock_path();
        let held = lock::try_lock(&path, LockMode::Alone).map_err(failed("lock", &path))?;
        Ok(held.inspect(|held| lock::sign(held, who)))
    }

    /// The holder of the lock.
    pub fn holder(&self) -> String {
        lock::holder(&self.lock_path()).unwrap_or_else(|| "another module".to_owned())
    }

    /// Removes the packages of an init that did not complete, and prepares the next. Returns the removed packages. The caller
    /// holds the lock.
    pub fn begin(&self) -> Result<Vec<String>, PluginCacheError> {
        let path = self.unfinished_path();
        let mut there = packages(&self.directory, DEPTH).map_err(failed("list", &self.directory))?;
        let mut removed = Vec::new();
        match fs::read(&path) {
            Ok(text) => {
                let before: BTreeSet<String> =
                    serde_json::from_slice(&text).map_err(|error| failed("read", &path)(error.into()))?;
                for package in there.difference(&before) {
                    let folder = self.directory.join(package);
                    remove_all(&folder).map_err(failed("remove", &folder))?;
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

    /// A provider whose cached package is not in the module's dependency lock file. The caller holds the lock.
    pub fn mismatch(&self, module: &Path) -> Result<Option<String>, PluginCacheError> {
        let path = module.join(".terraform.lock.hcl");
        let text = match open_regular(&path).and_then(|file| read_limited(file, LARGEST_LOCK_FILE)) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let body = hcl_edit::parser::parse_body(&text)
            .map_err(|error| failed("read", &path)(io::Error::other(error.message().to_owned())))?;
        let mut hashes = KnownHashes::load(self.hashes_path());
        for block in body.blocks().filter(|block| block.ident.as_str() == "provider") {
            let [label] = block.labels.as_slice() else { continue };
            let attribute = |name: &str| block.body.get_attribute(name).map(|attribute| &attribute.value);
            let Some(version) = attribute("version").and_then(hcl_values::string) else { continue };
            let below = Path::new(label.as_str()).join(version);
            if !below.components().all(|part| matches!(part, Component::Normal(_))) {
                continue;
            }
            let folder = self.directory.join(below);
            let here = packages(&folder, 1).map_err(failed("list", &folder))?;
            let listed = attribute("hashes").and_then(|hashes| hashes.as_array());
            let listed: Vec<String> = listed.into_iter().flatten().filter_map(hcl_values::string).collect();
            for platform in here {
                let package = folder.join(platform);
                let hash = hashes.of(&package).map_err(failed("read", &package))?;
                if !listed.contains(&hash) {
                    return Ok(Some(label.as_str().to_owned()));
                }
            }
        }
        Ok(None)
    }

    /// Removes a module's links into the cache. `data` is the engine's data folder, `.terraform`.
    pub fn unlink(&self, data: &Path) -> Result<(), PluginCacheError> {
        let folder = data.join("providers");
        for entry in entries(&folder, DEPTH).map_err(failed("list", &folder))? {
            let link = folder.join(entry);
            if fs::read_link(&link).is_ok_and(|target| target.starts_with(&self.directory)) {
                fs::remove_file(&link).map_err(failed("remove", &link))?;
            }
        }
        Ok(())
    }
}

/// The folders `depth` levels below a folder, and links to folders, by their paths below it.
fn packages(folder: &Path, depth: usize) -> io::Result<BTreeSet<String>> {
    let mut found = entries(folder, depth)?;
    found.retain(|entry| folder.join(entry).is_dir());
    Ok(found)
}

/// Everything `depth` levels below a folder, by its path below it.
fn entries(folder: &Path, depth: usize) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    walk(folder, "", depth, &mut |path, at_depth| {
        if at_depth {
            found.insert(path);
        }
    })?;
    Ok(found)
}

/// Visits the files below a folder, and everything `depth` levels below it, by their paths below it. A missing folder is empty.
fn walk(folder: &Path, below: &str, depth: usize, visit: &mut impl FnMut(String, bool)) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if depth > 1 && entry.file_type()?.is_dir() {
            walk(&entry.path(), &path, depth - 1, visit)?;
        } else {
            visit(path, depth == 1);
        }
    }
    Ok(())
}

/// The files of a package, ordered by name.
fn files(package: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    walk(package, "", usize::MAX, &mut |path, _| {
        names.insert(path);
    })?;
    Ok(names)
}

/// The checksum of an unpacked package in a dependency lock file: `h1:` and the SHA-256 of a list of the SHA-256 of each file,
/// ordered by name.
fn hash(package: &Path) -> io::Result<String> {
    let mut list = Sha256::new();
    for name in files(package)? {
        let digest = sha256_of(File::open(package.join(&name))?)?;
        list.update(format!("{digest}  {name}\n"));
    }
    Ok(format!("h1:{}", STANDARD.encode(list.finalize())))
}

/// Checksums of packages that were read before: a package has hundreds of megabytes, and every init checks it.
#[derive(Debug)]
struct KnownHashes {
    path: PathBuf,
    /// By package. Each is valid for files that look like this.
    known: BTreeMap<PathBuf, (Vec<FileLook>, String)>,
}

/// The name of a file, its inode, size and modification time in seconds and nanoseconds.
type FileLook = (String, u64, u64, i64, i64);

impl KnownHashes {
    /// Empty if the file cannot be read.
    fn load(path: PathBuf) -> Self {
        let known = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Self { known: known.unwrap_or_default(), path }
    }

    fn of(&mut self, package: &Path) -> io::Result<String> {
        let look = |name: String| {
            let it = fs::metadata(package.join(&name))?;
            Ok((name, it.ino(), it.len(), it.mtime(), it.mtime_nsec()))
        };
        let now = files(package)?.into_iter().map(look).collect::<io::Result<Vec<FileLook>>>()?;
        if let Some((_, hash)) = self.known.get(package).filter(|(then, _)| *then == now) {
            return Ok(hash.clone());
        }
        let hash = hash(package)?;
        self.known.retain(|package, _| package.is_dir());
        self.known.insert(package.to_owned(), (now, hash.clone()));
        // It is only a shortcut.
        let saved = serde_json::to_vec(&self.known).map_err(io::Error::from);
        if let Err(error) = saved.and_then(|text| write_private_atomic(&self.path, &text)) {
            tracing::warn!(path = %self.path.display(), %error, "failed to save the checksums of providers");
        }
        Ok(hash)
    }
}

#[cfg(test)]
mod tests;
