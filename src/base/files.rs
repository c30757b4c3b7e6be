//! Files and folders that are private to the user, written so that a crash leaves the old contents or the new.
//!
//! Modes are set again after creation, because the umask may remove bits from the requested mode.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::Mode;

pub(super) const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;

/// Makes everything that this process creates private to the user, regardless of the inherited umask. Scripts and
/// checkouts use the usual umask of 022, because modes end up in packages and hashes. In the working directory they are
/// protected by the private folders above them.
pub fn keep_private() {
    rustix::process::umask(Mode::from_raw_mode(0o077));
}

/// Writes a file that only its owner can read. Readers see either the old contents or the new, and the new contents
/// survive a power cut. A symlink at `path` is replaced, not followed.
pub fn write_private_atomic(path: &Path, contents: &[u8]) -> io::Result<()> {
    let folder = folder_of(path);
    let mut file = tempfile::Builder::new().prefix(".hawser-new-").tempfile_in(folder)?;
    file.write_all(contents)?;
    file.as_file().set_permissions(Permissions::from_mode(PRIVATE_FILE))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_dir(folder)
}

/// Creates a folder and its missing parents. New folders are private; existing ones keep their mode.
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
        // Another process was faster. A file or a dangling symlink in the way stays an error.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes creations, renames and removals inside a folder survive a power cut.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes a file, a folder or a symlink (not its target). A missing path is not an error. Read-only folders, which some
/// package managers create, are removed too.
pub fn remove_all(path: &Path) -> io::Result<()> {
    let allow_missing = |removed: io::Result<()>| match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => match allow_missing(fs::remove_dir_all(path)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                make_writable(path)?;
                allow_missing(fs::remove_dir_all(path))
            }
            removed => removed,
        },
        Ok(_) => allow_missing(fs::remove_file(path)),
        Err(error) => allow_missing(Err(error)),
    }
}

/// Gives the owner full access to a folder and its subfolders.
fn make_writable(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(PRIVATE_DIR))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_writable(&entry.path())?;
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

    /// Permissions do not stop root, so as root the test runs itself again as another user.
    #[test]
    fn read_only_folders_are_removed_and_symlink_targets_are_kept() {
        if rustix::process::geteuid().is_root() {
            let test = "base::files::tests::read_only_folders_are_removed_and_symlink_targets_are_kept";
            let program = std::env::current_exe().unwrap();
            let mut rerun = std::process::Command::new(program);
            rerun.args([test, "--exact"]).current_dir("/").env("TMPDIR", "/tmp");
            let output = std::os::unix::process::CommandExt::uid(&mut rerun, 65534).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
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
    fn new_folders_are_private_and_existing_ones_keep_their_mode() {
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
    fn a_symlink_is_replaced_and_its_target_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let (target, link) = (root.path().join("target"), root.path().join("link"));
        fs::write(&target, "untouched").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();

        write_private_atomic(&link, b"mine").unwrap();

        assert_eq!(fs::read(&target).unwrap(), b"untouched");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
    }
}
