//! For tests that interrupt what they start.

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// What is ignored when the tests are started (`nohup … &`, as some CI systems do) stays ignored in bash, which could not even
/// trap it. What is caught does not; the supervisor sees to that in the same way.
pub(crate) fn heed() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    if ignored & (1 << (Signal::INT.as_raw() - 1)) != 0 {
        // The handler stays. A thread of its own, because a runtime must not end inside of another.
        let caught = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _inside = runtime.enter();
            drop(signal(SignalKind::interrupt()).unwrap());
        });
        caught.join().unwrap();
    }
}
