//! The shared plugin cache with the real OpenTofu, which leaves lock files in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hawser::tasks::{Prepared, conclude, prepare};
use hawser_contract::requests::CancelKind;
use hawser_contract::{EngineName, EngineTask, InitOptions, Task, TaskRequest};

use crate::support::real_engines::real;
use crate::support::steps::{Bench, Interrupt, Ran, execute, log};

const MODULE: &str =
    "terraform {\n  required_providers {\n    fake = { source = \"example.test/acme/fake\" }\n  }\n}\n";

/// Modules that want a provider, and a mirror on disk that has it.
struct Place {
    bench: Bench,
}

impl Place {
    fn new() -> Option<Self> {
        let engine = real(EngineName::TOFU)?;
        let bench = Bench::new(&[]).with_engine(&engine);
        let mirror = bench.root.path().join("mirror");
        let folder = mirror.join("example.test/acme/fake");
        fs::create_dir_all(&folder).unwrap();
        let platform = if cfg!(target_arch = "aarch64") { "linux_arm64" } else { "linux_amd64" };
        let zip =
            "import sys, zipfile\nzipfile.ZipFile(sys.argv[1], 'w').writestr('terraform-provider-fake', 'x')";
        let file = folder.join(format!("terraform-provider-fake_1.0.0_{platform}.zip"));
        assert!(Command::new("python3").args(["-c", zip]).arg(file).status().unwrap().success());
        let rc =
            format!("provider_installation {{\n  filesystem_mirror {{\n    path = {mirror:?}\n  }}\n}}\n");
        fs::write(bench.root.path().join("rc"), rc).unwrap();
        Some(Self { bench })
    }

    fn module(&self, name: &str) -> PathBuf {
        self.bench.root.path().join("work/stack/space").join(name)
    }

    async fn init(&self, name: &str, interrupt: Option<Interrupt<'_>>) -> Ran {
        fs::create_dir_all(self.module(name)).unwrap();
        fs::write(self.module(name).join("main.tf"), MODULE).unwrap();
        let mut context = self.bench.context();
        context.common.metadata.module_name = name.to_owned();
        let rc = self.bench.root.path().join("rc").to_str().unwrap().to_owned();
        let resolved_env_vars = BTreeMap::from([("TF_CLI_CONFIG_FILE".to_owned(), rc)]);
        let request = TaskRequest::Engine(EngineTask {
            init: InitOptions { resolved_env_vars, ..InitOptions::default() },
            ..EngineTask::new(Task::Init, EngineName::TOFU)
        });
        let Ok(Prepared::Run(launch)) = prepare(&context, &request).await else { panic!("not prepared") };
        let exit = execute(&context.folder, &launch, interrupt.as_ref());
        drop(launch);
        let result = conclude(&context, &request, &exit).await;
        Ran { result, log: log(&context.folder) }
    }
}

/// Whether a module's provider is a link into the cache.
fn is_linked(module: &Path) -> bool {
    let version = module.join(".terraform/providers/example.test/acme/fake/1.0.0");
    let mut packages = fs::read_dir(version).unwrap().map(|entry| entry.unwrap().path());
    packages.any(|package| fs::read_link(package).is_ok())
}

#[tokio::test]
async fn later_inits_use_the_cache_too() {
    let Some(place) = Place::new() else { return };
    for name in ["one", "two", "one", "two", "one"] {
        let ran = place.init(name, None).await;
        assert!(!ran.says("The plugin cache is not used"), "{name}: {:#?}", ran.log);
        ran.completed();
        assert!(is_linked(&place.module(name)), "{name}");
    }
}

#[tokio::test]
async fn an_init_that_was_killed_does_not_keep_others_from_the_cache() {
    let Some(place) = Place::new() else { return };
    let kill = Interrupt { at: "Initializing provider plugins", kind: CancelKind::Kill };
    let _ = place.init("one", Some(kill)).await;
    // As the engine leaves it if it is killed while it unpacks.
    let caches = place.bench.root.path().join("work/plugincache");
    let version = caches.join("tofu/example.test/acme/fake/1.0.0");
    fs::create_dir_all(version.join("linux_half")).unwrap();
    fs::write(version.join("linux_half.lock"), "").unwrap();
    fs::write(caches.join("tofu.unfinished"), "[]").unwrap();
    for name in ["two", "one", "two"] {
        let ran = place.init(name, None).await;
        assert!(!ran.says("The plugin cache is not used"), "{name}: {:#?}", ran.log);
        ran.completed();
        assert!(is_linked(&place.module(name)), "{name}");
    }
    assert!(!version.join("linux_half").exists());
}
