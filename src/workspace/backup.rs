//! Keeps a second copy of a file that an engine left behind.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::base::confined_dir::{ConfinedDir, EntryKind};
use crate::base::files::{create_private_dir_all, sync_dir, write_private_atomic};

/// Copies a file to a private folder, named after its modification time and `name`. Returns the path and the contents. An
/// existing copy is reused; a different file is never overwritten. `None` if there is no such file.
///
/// With `moves`, the caller removes the file afterwards, and the copy is a hard link where possible: an engine that outlived its
/// supervisor may still be writing, and the rest of the file arrives too.
pub fn keep(
    from: &ConfinedDir,
    file: &str,
    folder: &Path,
    name: &str,
    moves: bool,
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
    let mut count = 1;
    loop {
        let number = if count == 1 { String::new() } else { format!("-{count}") };
        let path = folder.join(format!("{time}{number}-{name}"));
        match fs::read(&path) {
            Ok(earlier) if earlier == contents => return Ok(Some((path, contents))),
            Ok(_) => count += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if moves {
                    link(from, file, &path)?;
                } else {
                    write_private_atomic(&path, &contents)?;
                }
                return Ok(Some((path, contents)));
            }
            Err(error) => return Err(error),
        }
    }
}

fn link(from: &ConfinedDir, file: &OsStr, path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    from.link_or_copy(file, &ConfinedDir::open(folder)?, path.file_name().unwrap_or_default())?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    fs::File::open(path)?.sync_all()?;
    sync_dir(folder)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::engines::terraform::locks::ERRORED_STATE;

    #[test]
    fn a_copy_is_made_once_and_overwrites_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (from, folder) = (root.path().join(ERRORED_STATE), root.path().join("a/b"));
        let keep = || keep(&ConfinedDir::open(root.path()).unwrap(), ERRORED_STATE, &folder, "x", false);
        assert_eq!(keep().unwrap(), None);
        fs::write(&from, "one").unwrap();
        let (first, contents) = keep().unwrap().unwrap();
        assert_eq!(contents, b"one");
        assert_eq!(keep().unwrap().unwrap().0, first);
        let time = fs::metadata(&from).unwrap().modified().unwrap();
        fs::write(&from, "two").unwrap();
        fs::File::options().write(true).open(&from).unwrap().set_modified(time).unwrap();
        let (second, _) = keep().unwrap().unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read(first).unwrap(), b"one");
        fs::remove_file(&from).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &from).unwrap();
        assert_eq!(keep().unwrap(), None);
    }
    #[test]
    fn a_moved_file_gets_what_is_written_after_the_move() {
        let root = tempfile::tempdir().unwrap();
        let (from, folder) = (root.path().join(ERRORED_STATE), root.path().join("kept"));
        let keep = || keep(&ConfinedDir::open(root.path()).unwrap(), ERRORED_STATE, &folder, "x", true);
        let mut writer = fs::File::create(&from).unwrap();
        writer.write_all(b"one").unwrap();
        let (kept, _) = keep().unwrap().unwrap();
        assert_eq!(keep().unwrap().unwrap().0, kept);
        fs::remove_file(&from).unwrap();
        writer.write_all(b" two").unwrap();
        assert_eq!(fs::read(&kept).unwrap(), b"one two");
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
