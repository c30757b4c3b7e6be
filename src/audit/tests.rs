//! Tests of the file. `tests/it/audit.rs` tests the content of the lines with whole jobs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::file::Appender;

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn lines_are_appended_and_a_torn_line_is_terminated() {
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
fn a_lock_that_another_process_keeps_does_not_stop_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let mut log = Appender::new(path.clone());
    log.append(b"one").unwrap();
    let stopped = fs::File::open(&path).unwrap();
    stopped.lock().unwrap();
    log.append(b"two").unwrap();
    assert_eq!(lines(&path), ["one", "two"]);
}

#[test]
fn a_renamed_or_removed_file_is_created_again_and_an_existing_mode_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (path, old) = (folder.path().join("audit.jsonl"), folder.path().join("audit.jsonl.1"));
    let mut log = Appender::new(path.clone());
    log.append(b"one").unwrap();
    fs::rename(&path, &old).unwrap();
    log.append(b"two").unwrap();
    fs::remove_file(&path).unwrap();
    log.append(b"three").unwrap();
    assert_eq!((lines(&old), lines(&path)), (vec!["one".to_owned()], vec!["three".to_owned()]));

    // Like `create` of logrotate.
    fs::rename(&path, &old).unwrap();
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    log.append(b"four").unwrap();
    assert_eq!(lines(&path), ["four"]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);

    // Like `copytruncate` of logrotate.
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
fn a_failed_write_is_an_error_and_the_next_line_is_tried_again() {
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
    // The pipe has no reader.
    Appender::new(pipe).append(b"one").unwrap_err();
}
