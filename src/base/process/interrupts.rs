//! For tests that interrupt their child processes.

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// Some CI systems start the tests with SIGINT ignored (`nohup … &`). An ignored signal stays ignored in child processes,
/// and bash cannot even trap it. A caught signal does not, so this catches it, as the supervisor does.
pub(crate) fn heed() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    if ignored & (1 << (Signal::INT.as_raw() - 1)) != 0 {
        // The handler stays installed. This needs a thread, because a runtime must not be dropped inside another one.
        let caught = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _inside = runtime.enter();
            drop(signal(SignalKind::interrupt()).unwrap());
        });
        caught.join().unwrap();
    }
}
