//! The real engines: Terraform from `PATH`, OpenTofu and Pulumi from the folder that `tests/engines/build` fills.
//!
//! Without an engine, its tests are skipped, and one line says so. With `HAWSER_REQUIRE_ENGINES`, which CI sets, they fail.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use hawser_contract::EngineName;

/// A real engine on this machine.
#[derive(Debug, Clone)]
pub(crate) struct RealEngine {
    pub(crate) name: EngineName,
    /// The folder of the program, and of its plugins.
    pub(crate) folder: PathBuf,
}

/// The engine, or `None` if the test must be skipped.
pub(crate) fn real(name: EngineName) -> Option<RealEngine> {
    let folder = if name == EngineName::TERRAFORM { on_path(name.as_str()) } else { Some(BUILT.clone()) };
    match folder.filter(|folder| folder.join(name.as_str()).is_file()) {
        Some(folder) => Some(RealEngine { name, folder }),
        None => {
            let hint = format!("{name} is missing: tests/engines/build builds it");
            assert!(std::env::var_os("HAWSER_REQUIRE_ENGINES").is_none(), "{hint}");
            skip(&hint);
            None
        }
    }
}

/// Terraform, which every test run needs.
pub(crate) fn terraform() -> RealEngine {
    real(EngineName::TERRAFORM).expect("terraform is in PATH")
}

/// Runs a test with an engine, unless the engine is missing.
pub(crate) async fn with<F: Future<Output = ()>>(name: EngineName, test: impl FnOnce(RealEngine) -> F) {
    if let Some(engine) = real(name) {
        test(engine).await;
    }
}

/// Makes two tests of each function that takes a [`RealEngine`]: `terraform::NAME` and `tofu::NAME` in its module.
macro_rules! test_with_terraform_and_tofu {
    ($($test:ident),+ $(,)?) => {
        mod terraform {
            $(#[tokio::test]
            async fn $test() {
                let engine = hawser_contract::EngineName::TERRAFORM;
                $crate::support::real_engines::with(engine, super::$test).await;
            })+
        }

        mod tofu {
            $(#[tokio::test]
            async fn $test() {
                let engine = hawser_contract::EngineName::TOFU;
                $crate::support::real_engines::with(engine, super::$test).await;
            })+
        }
    };
}
pub(crate) use test_with_terraform_and_tofu;

/// The engines that read Terraform's language, without those that are missing.
pub(crate) fn terraform_and_tofu() -> impl Iterator<Item = RealEngine> {
    [EngineName::TERRAFORM, EngineName::TOFU].into_iter().filter_map(real)
}

/// Where `tests/engines/build` puts the engines.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engines/build");
    let output = Command::new(script).arg("--path").output().expect("tests/engines/build starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("a path").trim_end().into()
});

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find(|folder| folder.join(program).is_file())
}

/// Says once why tests are skipped.
pub(crate) fn skip(reason: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap().insert(reason.to_owned()) {
        // Not through `eprintln!`, which the test harness hides. At once, because other tests write at the same time.
        let _ = std::io::stderr().write_all(format!("skipping tests: {reason}\n").as_bytes());
    }
}
