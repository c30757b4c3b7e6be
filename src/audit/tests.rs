//! The file, by itself. What is in its lines is tested with whole jobs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::file::Appender;

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn lines_are_added_to_what_is_there_and_a_torn_one_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("not/there/audit.jsonl");
    let mut log = Appender::new(path.clone());
    log.append(b"one").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    drop(log);

    fs::write(&path, "one\n{\"torn").unwrap();
    let mut log = Appender::new(path.clone());
    log.append(b"two").unwrap();
    log.append(b"three").unwrap();
    assert_eq!(lines(&path), ["one", "{\"torn", "two", "three"]);
}

#[test]
fn a_file_that_was_renamed_or_removed_is_made_anew_and_its_mode_is_its_owners_choice() {
    let folder = tempfile::tempdir().unwrap();
    let (path, old) = (folder.path().join("audit.jsonl"), folder.path().join("audit.jsonl.1"));
    let mut log = Appender::new(path.clone());
    log.append(b"one").unwrap();
    fs::rename(&path, &old).unwrap();
    log.append(b"two").unwrap();
    fs::remove_file(&path).unwrap();
    log.append(b"three").unwrap();
    assert_eq!((lines(&old), lines(&path)), (vec!["one".to_owned()], vec!["three".to_owned()]));

    // As logrotate's `create` does it.
    fs::rename(&path, &old).unwrap();
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    log.append(b"four").unwrap();
    assert_eq!(lines(&path), ["four"]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);

    // As logrotate's `copytruncate` does it.
    fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    log.append(b"five").unwrap();
    assert_eq!(lines(&path), ["five"]);
}

#[test]
fn two_writers_do_not_mix_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    std::thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let mut log = Appender::new(path.clone());
            scope.spawn(move || {
                for _ in 0..100 {
                    log.append(name.repeat(3000).as_bytes()).unwrap();
                }
            });
        }
    });
    let lines = lines(&path);
    assert_eq!(lines.len(), 300);
    for line in lines {
        assert_eq!(line, line[..1].repeat(3000));
    }
}

#[test]
fn what_cannot_be_written_is_an_error_and_the_next_line_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    fs::create_dir(&path).unwrap();
    let mut log = Appender::new(path.clone());
    log.append(b"one").unwrap_err();
    fs::remove_dir(&path).unwrap();
    log.append(b"two").unwrap();
    assert_eq!(lines(&path), ["two"]);

    let mut full = Appender::new("/dev/full".into());
    full.append(b"one").unwrap_err();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    // Nobody reads it; nobody waits for that.
    Appender::new(pipe).append(b"one").unwrap_err();
}
