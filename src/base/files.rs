//! Files and folders that are private to the user, written so that a crash leaves the old contents or the new.
//!
//! Modes are set after creation as well as at it: the umask may take bits away from a mode that is asked for,
//! and a folder without its owner's bits is of no use to anyone.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::Mode;

/// Only the owner may read and write.
pub(super) const PRIVATE_FILE: u32 = 0o600;
/// Only the owner may list, enter and change.
const PRIVATE_DIR: u32 = 0o700;

/// Makes everything that this process creates private to the user, whatever the umask was. Scripts and the files of a checkout
/// have the usual umask of 022, since modes are part of what is packed and hashed. In the working directory they are all below folders that nobody
/// else may enter.
pub fn keep_private() {
    rustix::process::umask(Mode::from_raw_mode(0o077));
}

/// Writes a file that only its owner can read. Whoever opens `path` sees the old contents or the new, never a
/// part, and what was written survives a power cut. A symlink at `path` is replaced, not followed.
pub fn write_private_atomic(path: &Path, contents: &[u8]) -> io::Result<()> {
    let folder = folder_of(path);
    let mut file = tempfile::Builder::new().prefix(".hawser-new-").tempfile_in(folder)?;
    file.write_all(contents)?;
    file.as_file().set_permissions(Permissions::from_mode(PRIVATE_FILE))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_dir(folder)
}

/// Creates a folder and those above it that are missing; the ones it creates are private. Folders that are
/// there already keep their mode.
pub fn create_private_dir_all(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = folder_of(path);
    if above != path {
        create_private_dir_all(above)?;
    }
    match DirBuilder::new().mode(PRIVATE_DIR).create(path) {
        Ok(()) => {
            fs::set_permissions(path, Permissions::from_mode(PRIVATE_DIR))?;
            sync_dir(above)
        }
        // Someone else was faster; a file or a dangling symlink in the way stays an error.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes creations, renames and removals inside a folder survive a power cut.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes whatever is there, a symlink and not what it points at. Gone already is fine. Folders that not even their owner
/// may change, as some package managers leave them, do not stay.
pub fn remove_all(path: &Path) -> io::Result<()> {
    let gone = |removed: io::Result<()>| match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => match gone(fs::remove_dir_all(path)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                make_changeable(path)?;
                gone(fs::remove_dir_all(path))
            }
            removed => removed,
        },
        Ok(_) => gone(fs::remove_file(path)),
        Err(error) => gone(Err(error)),
    }
}

/// Gives the owner all rights on a folder and those below it.
fn make_changeable(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(PRIVATE_DIR))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_changeable(&entry.path())?;
        }
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// Root may change everything, so what is tested here is done by somebody else where the test is run by root.
    #[test]
    fn folders_that_nobody_may_change_are_removed_and_what_symlinks_point_at_is_not() {
        if rustix::process::geteuid().is_root() {
            let test = "base::files::tests::folders_that_nobody_may_change_are_removed_and_what_symlinks_point_at_is_not";
            let program = std::env::current_exe().unwrap();
            let mut again = std::process::Command::new(program);
            again.args([test, "--exact"]).current_dir("/").env("TMPDIR", "/tmp");
            let said = std::os::unix::process::CommandExt::uid(&mut again, 65534).output().unwrap();
            let text = String::from_utf8_lossy(&said.stdout);
            assert!(said.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let (tree, kept) = (root.path().join("tree"), root.path().join("kept"));
        for folder in [&tree.join("mod/cache"), &kept] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("file"), "").unwrap();
        }
        std::os::unix::fs::symlink(&kept, tree.join("mod/link")).unwrap();
        for folder in ["mod/cache", "mod", ""] {
            fs::set_permissions(tree.join(folder), Permissions::from_mode(0o500)).unwrap();
        }
        fs::set_permissions(&kept, Permissions::from_mode(0o500)).unwrap();
        remove_all(&tree).unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
        assert_eq!(mode(&kept), 0o500);
        remove_all(&tree).unwrap();
        fs::set_permissions(&kept, Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn folders_are_private_and_existing_ones_keep_their_mode() {
        let root = tempfile::tempdir().unwrap();
        let open = root.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();

        create_private_dir_all(&open.join("a/b")).unwrap();
        create_private_dir_all(&open.join("a/b")).unwrap();

        assert_eq!(mode(&open), 0o755);
        assert_eq!(mode(&open.join("a")), 0o700);
        assert_eq!(mode(&open.join("a/b")), 0o700);
    }

    #[test]
    fn a_file_in_the_way_of_a_folder_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "").unwrap();
        create_private_dir_all(&root.path().join("a")).unwrap_err();
        create_private_dir_all(&root.path().join("a/b")).unwrap_err();
    }

    #[test]
    fn a_private_file_replaces_an_open_one_and_leaves_nothing_else_behind() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("secret");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();

        write_private_atomic(&path, b"new").unwrap();

        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_symlink_is_replaced_and_what_it_pointed_at_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let (target, link) = (root.path().join("target"), root.path().join("link"));
        fs::write(&target, "untouched").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();

        write_private_atomic(&link, b"mine").unwrap();

        assert_eq!(fs::read(&target).unwrap(), b"untouched");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
    }
}
