//! Running processes, from `/proc`.

use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    parent: u32,
    pub(crate) name: String,
}

impl Process {
    /// The environment variables that the process was started with.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let all = self.strings("environ").into_iter();
        all.filter_map(|it| it.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
            .collect()
    }

    pub(crate) fn arguments(&self) -> Vec<String> {
        self.strings("cmdline")
    }

    /// Open file descriptors and their targets.
    pub(crate) fn open_files(&self) -> Vec<(u32, PathBuf)> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten();
        let number = |name: std::ffi::OsString| name.to_str().unwrap().parse().unwrap();
        entries.filter_map(|it| Some((number(it.file_name()), fs::read_link(it.path()).ok()?))).collect()
    }

    fn strings(&self, file: &str) -> Vec<String> {
        let bytes = fs::read(format!("/proc/{}/{file}", self.pid)).unwrap_or_default();
        let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
        let text = |part: &[u8]| std::ffi::OsString::from_vec(part.to_vec()).to_string_lossy().into_owned();
        parts.map(text).collect()
    }
}

/// All descendants of a process.
pub(crate) fn below(root: u32) -> Vec<Process> {
    let all: Vec<Process> =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|it| read(&it.path())).collect();
    let mut found: Vec<Process> = Vec::new();
    loop {
        let is_new = |it: &&Process| {
            let known = |pid| found.iter().any(|it| it.pid == pid);
            (it.parent == root || known(it.parent)) && !known(it.pid)
        };
        let new: Vec<Process> = all.iter().filter(is_new).cloned().collect();
        if new.is_empty() {
            return found;
        }
        found.extend(new);
    }
}

fn read(folder: &std::path::Path) -> Option<Process> {
    let pid = folder.file_name()?.to_str()?.parse().ok()?;
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let (head, tail) = stat.rsplit_once(") ")?;
    let name = head.split_once(" (")?.1.to_owned();
    let parent = tail.split(' ').nth(1)?.parse().ok()?;
    Some(Process { pid, parent, name })
}
