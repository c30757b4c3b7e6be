//! Keeps a second copy of a file that an engine left behind.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::base::confined_dir::{self, EntryKind};
use crate::base::files::{create_private_dir_all, sync_dir};

/// How to keep a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Copy its contents.
    Copy,
    /// Hard-link it if possible: if an unsupervised engine is still writing the file, the copy gets the rest too.
    Link,
}

/// Keeps a file in a private folder, named after its modification time and `name`. Returns the path and the contents. An
/// existing copy is reused; a different file is never overwritten. `None` if there is no such file.
pub fn keep(
    from: &confined_dir::ConfinedDir,
    file: &str,
    folder: &Path,
    name: &str,
    by: By,
) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
    let file = OsStr::new(file);
    if from.kind(file)? != Some(EntryKind::File) {
        // An engine does not write symlinks or folders with this name.
        return Ok(None);
    }
    let mut opened = from.open_file(file)?;
    let mut contents = Vec::new();
    opened.read_to_end(&mut contents)?;
    let time = jiff::Timestamp::try_from(opened.metadata()?.modified()?).map_err(io::Error::other)?;
    let time = time.strftime("%Y%m%dT%H%M%SZ").to_string();
    create_private_dir_all(folder)?;
    let to = confined_dir::ConfinedDir::open(folder)?;
    let mut count = 1;
    loop {
        let number = if count == 1 { String::new() } else { format!("-{count}") };
        let path = folder.join(format!("{time}{number}-{name}"));
        match fs::read(&path) {
            Ok(earlier) if earlier == contents => {
                // A crash may have prevented this before.
                make_durable(&path)?;
                return Ok(Some((path, contents)));
            }
            Ok(_) => count += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let new_name = path.file_name().unwrap_or_default();
                let link = || -> io::Result<()> {
                    from.link_or_copy(file, &to, new_name)?;
                    // The file may have been replaced since it was opened.
                    let linked = to.open_file(new_name)?.metadata()?;
                    match linked.ino() == opened.metadata()?.ino() {
                        true => make_durable(&path),
                        false => Err(io::Error::other("the file was replaced")),
                    }
                };
                if by == By::Copy || link().is_err() {
                    to.write(new_name, &contents)?;
                }
                return Ok(Some((path, contents)));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes a file private and syncs it to disk.
fn make_durable(file: &Path) -> io::Result<()> {
    fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    fs::File::open(file)?.sync_all()?;
    file.parent().map_or(Ok(()), sync_dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::confined_dir::ConfinedDir;
    use crate::engines::terraform::locks::ERRORED_STATE;

    #[test]
    fn a_copy_is_made_once_and_overwrites_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (from, folder) = (root.path().join(ERRORED_STATE), root.path().join("a/b"));
        let keep = |by| keep(&ConfinedDir::open(root.path()).unwrap(), ERRORED_STATE, &folder, "x", by);
        assert_eq!(keep(By::Copy).unwrap(), None);
        fs::write(&from, "one").unwrap();
        let (first, contents) = keep(By::Copy).unwrap().unwrap();
        assert_eq!(contents, b"one");
        assert_eq!(keep(By::Copy).unwrap().unwrap().0, first);
        let time = fs::metadata(&from).unwrap().modified().unwrap();
        fs::write(&from, "two").unwrap();
        fs::File::options().write(true).open(&from).unwrap().set_modified(time).unwrap();
        let (second, _) = keep(By::Copy).unwrap().unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read(first).unwrap(), b"one");
        fs::remove_file(&from).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &from).unwrap();
        assert_eq!(keep(By::Copy).unwrap(), None);
    }

    #[test]
    fn a_link_includes_what_is_written_later() {
        let root = tempfile::tempdir().unwrap();
        let (from, folder) = (root.path().join(ERRORED_STATE), root.path().join("kept"));
        let keep = |by| keep(&ConfinedDir::open(root.path()).unwrap(), ERRORED_STATE, &folder, "x", by);
        let mut writer = fs::File::create(&from).unwrap();
        io::Write::write_all(&mut writer, b"one").unwrap();
        let (kept, _) = keep(By::Link).unwrap().unwrap();
        assert_eq!(keep(By::Link).unwrap().unwrap().0, kept);
        fs::remove_file(&from).unwrap();
        io::Write::write_all(&mut writer, b" two").unwrap();
        assert_eq!(fs::read(&kept).unwrap(), b"one two");
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
