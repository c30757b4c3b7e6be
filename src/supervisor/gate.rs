//! The supervisor's end of the gate: the socket on which the script asks.
//!
//! The asking process is identified by the kernel (`SO_PEERCRED`), and held by a pidfd, which never refers to another process
//! with the same number. Only this process has its end of the connection, so while the connection is up the process
//! exists, and the pidfd that was opened before this was checked is the right one.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};

use super::linux;
use super::question::{LONGEST, NO, Question, YES};
use crate::base::retry;

/// How many processes can ask at a time. The script asks one question after another.
const ASKING: usize = 16;

/// A process that asks, and waits for the answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) question: Question,
    pub(super) process: OwnedFd,
    connection: UnixStream,
}

impl Asked {
    pub(super) fn yes(self) {
        self.answer(&[YES]);
    }

    /// Without a reason, the task is being cancelled.
    pub(super) fn no(self, reason: &str) {
        self.answer(&[&[NO], reason.as_bytes()].concat());
    }

    /// Never waits: nothing was sent on this connection before.
    fn answer(self, bytes: &[u8]) {
        if let Ok(mut connection) = self.connection.into_std() {
            // If it fails, the process is gone.
            let _ = connection.write_all(bytes);
        }
    }
}

/// The socket in the step folder.
#[derive(Debug)]
pub(super) struct Gate {
    listener: UnixListener,
    /// Keeps the directory's number valid, which is part of `address`.
    _directory: File,
    /// The program that asks. This link works even after an upgrade has replaced the file.
    pub(super) program: String,
    /// The path of the socket for other processes. The step folder itself may exceed the 108 bytes that an address can have.
    pub(super) address: String,
}

impl Gate {
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        const NAME: &str = "gate";
        let directory = File::open(folder)?;
        let own = format!("/proc/{}", linux::own_number()?);
        let address = format!("{own}/fd/{}/{NAME}", directory.as_raw_fd());
        let listener = match StdListener::bind(&address) {
            // Left by a supervisor that was killed before it started the script.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                fs::remove_file(&address)?;
                StdListener::bind(&address)?
            }
            bound => bound?,
        };
        fs::set_permissions(&address, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        Ok(Self { listener, _directory: directory, program: format!("{own}/exe"), address })
    }

    /// Passes on questions until the receiver is closed.
    pub(super) async fn listen(self, asked: mpsc::Sender<Asked>) {
        let free = Arc::new(Semaphore::new(ASKING));
        loop {
            let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
            // Too many open files: the script waits until there are fewer.
            let Ok((connection, _)) = self.listener.accept().await else {
                tokio::time::sleep(retry::GATE).await;
                continue;
            };
            let asked = asked.clone();
            tokio::spawn(async move {
                if let Some(question) = read(connection).await {
                    // Closing the connection refuses it.
                    let _ = asked.send(question).await;
                }
                drop(permit);
            });
        }
    }
}

async fn read(mut connection: UnixStream) -> Option<Asked> {
    let pid = Pid::from_raw(connection.peer_cred().ok()?.pid()?)?;
    let mut bytes = Vec::new();
    (&mut connection).take(LONGEST).read_to_end(&mut bytes).await.ok()?;
    let question = Question::decode(&bytes)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    is_up(&connection).then_some(Asked { question, process, connection })
}

/// Whether the other end is still open. It has only closed its direction so far.
fn is_up(connection: &UnixStream) -> bool {
    let mut polled = [PollFd::new(connection, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && !polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
