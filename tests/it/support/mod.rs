//! Helpers that several test modules share.

pub(crate) mod audit;
pub(crate) mod authority;
pub(crate) mod eventually;
pub(crate) mod faulty_hub;
pub(crate) mod git;
pub(crate) mod git_server;
pub(crate) mod module;
pub(crate) mod processes;
pub(crate) mod proxy;
pub(crate) mod pulumi;
pub(crate) mod pulumi_cloud_stand_in;
pub(crate) mod real_engines;
pub(crate) mod relay;
pub(crate) mod scripted_hub;
pub(crate) mod steps;
pub(crate) mod world;

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Writes a program that this process is going to start. A child process writes it: otherwise a process that another test is
/// starting may inherit the file open for writing for a moment, and a file that is open for writing cannot be executed.
pub(crate) fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    install.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}

/// A loopback address that no other test uses, for a server that goes away and comes back on its port. On 127.0.0.1, another
/// server or connection could take the port in the meantime.
pub(crate) fn own_loopback() -> Ipv4Addr {
    static USED: AtomicU32 = AtomicU32::new(1);
    let [_, third, second, first] = USED.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let [.., process] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 16 + process % 224 + third, second, first.max(1))
}

/// A hook that puts a bash script in front of an engine. `lines` may return an exit code; otherwise the engine runs.
pub(crate) fn wrap(engine: &str, lines: &str) -> String {
    format!(
        "cat >\"$TMPDIR/{engine}\" <<'WRAPPER'
#!/bin/bash
{lines}
PATH=${{PATH#*:}} exec {engine} \"$@\"
WRAPPER
chmod 700 \"$TMPDIR/{engine}\"; PATH=$TMPDIR:$PATH"
    )
}
