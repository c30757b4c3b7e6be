//! Symlinks, pipes and swapped folders, with real files.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use crate::base::confined_dir::*;

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

struct Place {
    all: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let all = tempfile::tempdir().unwrap();
        fs::create_dir_all(all.path().join("root/a/b")).unwrap();
        fs::create_dir_all(all.path().join("rootless")).unwrap();
        fs::write(all.path().join("rootless/secret"), "secret").unwrap();
        fs::write(all.path().join("root/a/file"), "inside").unwrap();
        Self { all }
    }

    fn root(&self) -> PathBuf {
        self.all.path().join("root")
    }

    fn link(&self, target: &str, link: &str) {
        symlink(target, self.root().join(link)).unwrap();
    }
}

#[test]
fn only_symlinks_that_stay_below_the_root_are_followed() {
    let place = Place::new();
    place.link("a", "in");
    place.link("../file", "a/b/up");
    place.link("..", "parent");
    place.link("a/../..", "winding");
    place.link("in/../../rootless", "through");
    place.link("../rootless/secret", "file");
    let absolute = place.root().join("a").display().to_string();
    place.link(&absolute, "absolute");
    place.link("/etc", "etc");
    let inside = ConfinedRoot::open(&place.root()).unwrap();
    assert_eq!(inside.real(Path::new("in/b")).unwrap(), Path::new("a/b"));
    let mut text = String::new();
    inside.open_file(Path::new("in/b/up")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "inside");
    inside.open_or_create(Path::new("in/new/er")).unwrap();
    assert!(place.root().join("a/new/er").is_dir());
    for out in ["parent", "winding", "through", "absolute", "etc", "../rootless", "/etc"] {
        assert!(leads_out(&inside.folder(Path::new(out)).unwrap_err()), "{out}");
        let below = Path::new(out).join("new");
        assert!(leads_out(&inside.open_or_create(&below).unwrap_err()), "{out}");
        assert!(leads_out(&inside.open_file(&Path::new(out).join("secret")).unwrap_err()), "{out}");
    }
    assert!(leads_out(&inside.open_file(Path::new("file")).unwrap_err()));
    assert!(!inside.is_file(Path::new("file")));
    assert_eq!(fs::read_dir(place.all.path().join("rootless")).unwrap().count(), 1);
}

#[test]
fn replacing_an_open_folder_with_a_symlink_does_not_redirect_it() {
    let place = Place::new();
    let inside = ConfinedRoot::open(&place.root()).unwrap();
    let folder = inside.folder(Path::new("a")).unwrap();
    fs::rename(place.root().join("a"), place.root().join("moved")).unwrap();
    place.link("../rootless", "a");
    folder.write(name("new"), b"x").unwrap();
    assert_eq!(fs::read(place.root().join("moved/new")).unwrap(), b"x");
    assert!(!place.all.path().join("rootless/new").exists());
    fs::rename(place.root(), place.all.path().join("elsewhere")).unwrap();
    symlink("rootless", place.root()).unwrap();
    assert!(inside.open_file(Path::new("moved/new")).is_ok());
    ConfinedRoot::open(&place.root()).unwrap_err();
}

#[test]
fn a_symlink_is_replaced_removed_or_refused_but_never_followed() {
    let place = Place::new();
    for link in ["write", "read", "remove", "folder"] {
        place.link("a/file", link);
    }
    let folder = ConfinedRoot::open(&place.root()).unwrap().folder(Path::new("")).unwrap();
    folder.write(name("write"), b"new").unwrap();
    assert_eq!(fs::metadata(place.root().join("write")).unwrap().permissions().mode() & 0o777, 0o600);
    folder.open_file(name("read")).unwrap_err();
    folder.folder(name("folder")).unwrap_err();
    assert!(folder.remove_file(name("remove")).unwrap());
    assert!(!folder.remove_file(name("remove")).unwrap());
    assert_eq!(fs::read(place.root().join("a/file")).unwrap(), b"inside");
    for bad in ["", ".", "..", "a/file", "/etc", "a/"] {
        folder.write(name(bad), b"x").unwrap_err();
        folder.open_file(name(bad)).unwrap_err();
    }
    assert_eq!(folder.entries().unwrap().len(), 4);
}

#[test]
fn opening_a_pipe_fails_without_waiting_and_large_files_are_not_read() {
    let place = Place::new();
    rustix::fs::mknodat(rustix::fs::CWD, place.root().join("pipe"), FileType::Fifo, PRIVATE_FILE, 0).unwrap();
    let inside = ConfinedRoot::open(&place.root()).unwrap();
    inside.open_file(Path::new("pipe")).unwrap_err();
    inside.open_file(Path::new("a")).unwrap_err();
    let folder = inside.folder(Path::new("")).unwrap();
    folder.open_file(name("pipe")).unwrap_err();
    assert_eq!(folder.kind(name("pipe")).unwrap(), Some(EntryKind::Special));
    let open = || inside.open_file(Path::new("a/file")).unwrap();
    assert_eq!(read_limited(open(), 6).unwrap(), b"inside");
    assert_eq!(read_limited(open(), 5).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
}
