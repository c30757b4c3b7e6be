//! The shared plugin cache, with real Terraform and a provider from a mirror on disk.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use hawser::engines::terraform::plugin_cache::PluginCache;
use hawser::tasks::{TaskContext, TaskError, conclude};

use super::*;
use crate::support::eventually::eventually_blocking;
use crate::support::steps::{execute, log};

test_with_terraform_and_tofu! {
    two_modules_share_one_package_even_while_it_is_running,
    a_package_that_does_not_match_the_lock_file_is_not_used,
    a_failed_init_leaves_no_packages_in_the_cache,
    a_disabled_or_replaced_cache_is_not_used,
    a_module_without_the_cache_does_not_write_through_old_links,
}

const MODULE: &str =
    "terraform {\n  required_providers {\n    fake = { source = \"example.test/acme/fake\" }\n  }\n}\n";
const PROVIDER: &str = "example.test/acme/fake/1.0.0";

/// A working directory with modules that want a provider, and a mirror that has it as registries have it: zipped.
struct Place {
    bench: Bench,
    engine: RealEngine,
}

impl Place {
    fn new(engine: &RealEngine) -> Self {
        let bench = Bench::of(engine, &[]);
        let mirror = bench.root.path().join("mirror/example.test/acme/fake");
        fs::create_dir_all(&mirror).unwrap();
        // A program that can be run, as a provider is while its module is planned.
        let program = bench.root.path().join("terraform-provider-fake_v1.0.0");
        fs::copy("/bin/sleep", &program).unwrap();
        let platform = if cfg!(target_arch = "aarch64") { "linux_arm64" } else { "linux_amd64" };
        let zipped = Command::new("python3")
            .args([
                "-c",
                "import sys, zipfile\ninfo = zipfile.ZipInfo('terraform-provider-fake_v1.0.0')\n\
                info.external_attr = 0o100755 << 16\n\
                zipfile.ZipFile(sys.argv[2], 'w').writestr(info, open(sys.argv[1], 'rb').read())",
            ])
            .arg(&program)
            .arg(mirror.join(format!("terraform-provider-fake_1.0.0_{platform}.zip")))
            .status()
            .unwrap();
        assert!(zipped.success());
        let rc = format!(
            "provider_installation {{\n  filesystem_mirror {{\n    path = {:?}\n  }}\n}}\n",
            bench.root.path().join("mirror")
        );
        fs::write(bench.root.path().join("rc"), rc).unwrap();
        Self { bench, engine: engine.clone() }
    }

    fn module(&self, name: &str) -> PathBuf {
        let folder = self.bench.root.path().join("work/stack/space").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("main.tf"), MODULE).unwrap();
        folder
    }

    fn context(&self, name: &str) -> TaskContext {
        let mut context = self.bench.context();
        context.common.metadata.module_name = name.to_owned();
        context
    }

    fn request(&self, variables: &[(&str, &str)]) -> TaskRequest {
        let rc = self.bench.root.path().join("rc").to_str().unwrap().to_owned();
        let mut resolved_env_vars = BTreeMap::from([("TF_CLI_CONFIG_FILE".to_owned(), rc)]);
        resolved_env_vars.extend(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        self.bench.request(TaskRequest::Engine(EngineTask {
            init: InitOptions { resolved_env_vars, ..InitOptions::default() },
            ..EngineTask::new(Task::Init, ENGINE)
        }))
    }

    async fn init(&self, name: &str, variables: &[(&str, &str)]) -> Ran {
        let (context, request) = (self.context(name), self.request(variables));
        let result = match prepare(&context, &request).await {
            Ok(Prepared::Run(launch)) => {
                let exit = execute(&context.folder, &launch, None);
                conclude(&context, &request, &exit).await
            }
            other => panic!("{other:?}"),
        };
        Ran { result, log: log(&context.folder) }
    }

    fn cache(&self) -> PluginCache {
        PluginCache::of(self.engine.name.as_str(), &self.bench.root.path().join("work"))
    }

    /// The provider's program in the cache.
    fn cached(&self) -> PathBuf {
        package(&self.cache().directory().join(PROVIDER)).join("terraform-provider-fake_v1.0.0")
    }
}

/// The folder of the provider for this platform. OpenTofu has a lock file beside it.
fn package(version: &Path) -> PathBuf {
    let mut entries = fs::read_dir(version).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.is_dir()).unwrap()
}

/// What a module's provider is a link to, if it is one.
fn link(module: &Path) -> Option<PathBuf> {
    let version = module.join(".terraform/providers").join(PROVIDER);
    fs::read_link(package(&version)).ok()
}

async fn two_modules_share_one_package_even_while_it_is_running(engine: RealEngine) {
    let place = Place::new(&engine);
    let (one, two) = (place.module("one"), place.module("two"));
    place.init("one", &[]).await.completed();
    let program = place.cached();
    let before = fs::metadata(&program).unwrap();
    let mut running = Command::new(&program).arg("600").spawn().unwrap();
    // Without a dependency lock file, where an engine would unpack it again ...
    let second = place.init("two", &[]).await;
    // ... with one that lists it, and without one where it is linked already.
    let again = place.init("one", &[]).await;
    fs::remove_file(one.join(".terraform.lock.hcl")).unwrap();
    let once_more = place.init("one", &[]).await;
    running.kill().unwrap();
    running.wait().unwrap();
    second.completed();
    again.completed();
    once_more.completed();
    let after = fs::metadata(&program).unwrap();
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()), "written twice");
    assert_eq!(link(&one).as_deref(), program.parent());
    assert_eq!(link(&two).as_deref(), program.parent());
    assert!(!place.cache().unfinished_path().exists());
    let folder = place.cache().directory().parent().unwrap().to_owned();
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
}

async fn a_package_that_does_not_match_the_lock_file_is_not_used(engine: RealEngine) {
    let place = Place::new(&engine);
    place.module("one");
    place.init("one", &[]).await.completed();
    let program = place.cached();
    let two = place.module("two");
    place.init("two", &[]).await.completed();
    let lock_file = "provider \"example.test/acme/fake\" {\n  version = \"1.0.0\"\n  hashes = [\n    \
                     \"h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\",\n  ]\n}\n";
    fs::write(two.join(".terraform.lock.hcl"), lock_file).unwrap();
    let mut running = Command::new(&program).arg("600").spawn().unwrap();
    let ran = place.init("two", &[]).await;
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(ran.says("The plugin cache is not used: the dependency lock file"), "{:#?}", ran.log);
    assert!(!ran.says("text file busy"), "{:#?}", ran.log);
    // The mirror has just this package, which is not the one of the lock file.
    assert!(ran.faulted().message.contains("exit code 1"));
}

async fn a_failed_init_leaves_no_packages_in_the_cache(engine: RealEngine) {
    let place = Place::new(&engine);
    place.module("one");
    let other = place.module("other");
    // The provider is there, and another one is nowhere to be found.
    let missing = MODULE.replace("fake =", "gone = { source = \"example.test/acme/gone\" }\n    fake =");
    fs::write(other.join("main.tf"), missing).unwrap();
    place.init("other", &[]).await.faulted();
    assert!(place.cache().unfinished_path().exists());
    // As if it had been killed while it unpacked.
    let half = place.cache().directory().join(PROVIDER).join("half_packed");
    fs::create_dir_all(&half).unwrap();
    let ran = place.init("one", &[]).await;
    assert!(ran.says("half_packed from the plugin cache"), "{:#?}", ran.log);
    ran.completed();
    assert!(!half.exists() && place.cached().exists());
}

async fn a_disabled_or_replaced_cache_is_not_used(engine: RealEngine) {
    let mut place = Place::new(&engine);
    let module = place.module("one");
    let own = place.bench.root.path().join("own");
    fs::create_dir(&own).unwrap();
    place.init("one", &[("TF_PLUGIN_CACHE_DIR", own.to_str().unwrap())]).await.completed();
    assert!(own.join(PROVIDER).is_dir() && !place.cache().directory().exists());
    fs::remove_dir_all(module.join(".terraform")).unwrap();
    place.bench.settings["Engine"]["PluginCacheEnabled"] = json!(false);
    place.init("one", &[]).await.completed();
    assert!(!place.cache().directory().exists());
    assert_eq!(link(&module), None);
}

async fn a_module_without_the_cache_does_not_write_through_old_links(engine: RealEngine) {
    let mut place = Place::new(&engine);
    let module = place.module("one");
    place.init("one", &[]).await.completed();
    let program = place.cached();
    assert!(link(&module).is_some());
    place.bench.settings["Engine"]["PluginCacheEnabled"] = json!(false);
    fs::remove_file(module.join(".terraform.lock.hcl")).unwrap();
    let before = fs::metadata(&program).unwrap();
    place.init("one", &[]).await.completed();
    let after = fs::metadata(&program).unwrap();
    assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
    assert_eq!(link(&module), None);
}

#[tokio::test]
async fn an_init_waits_for_the_cache_and_can_be_cancelled() {
    let place = Place::new(&terraform());
    place.module("one");
    let held = place.cache().try_lock("a/b/c").unwrap().unwrap();
    let waits = |context: &TaskContext| {
        log(&context.folder).iter().any(|(_, line)| line.contains("Waiting for the init of a/b/c"))
    };
    for cancelled in [true, false] {
        let (context, request) = (place.context("one"), place.request(&[]));
        let waiting = tokio::spawn({
            let context = context.clone();
            async move { prepare(&context, &request).await }
        });
        let seen = context.clone();
        tokio::task::spawn_blocking(move || eventually_blocking("it waits", || waits(&seen))).await.unwrap();
        if cancelled {
            context.cancel.cancel();
            assert!(matches!(waiting.await.unwrap(), Err(TaskError::Cancelled)));
        } else {
            held.unlock().unwrap();
            let Ok(Prepared::Run(launch)) = waiting.await.unwrap() else { panic!("not prepared") };
            assert!(place.cache().try_lock("a/b/c").unwrap().is_none(), "the lock is free");
            drop(launch);
            // A program that another test is just starting may have a copy of the file, for a moment.
            eventually_blocking("it lets go", || place.cache().try_lock("a/b/c").unwrap().is_some());
        }
    }
}
