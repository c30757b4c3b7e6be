//! Runs the commands of the READMEs as a user who pastes them.
//!
//! The programs that would change this machine are replaced by a script that records its arguments, and system directories by
//! temporary ones. All other programs are missing.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;

use hawser_contract::EngineName;
use tempfile::TempDir;

use super::*;
use crate::documents::shell_blocks;
use crate::support::real_engines::real;
use crate::support::write_program;

/// Fails if a file among the arguments is missing.
const RECORDER: &str = r#"#!/bin/bash
printf '%s\n' "${0##*/} $*" >>"$RECORD"
for word; do
  case $word in ../* | *.yaml) [[ -e $word ]] || { echo "$word does not exist" >&2; exit 1; } ;; esac
done
case "${0##*/} $1" in
  'docker build') [[ -e ${*: -1}/Dockerfile ]] ;;
  'cargo build') install -D --mode=0755 "$0" ../../target/release/hawser ;;
  'systemctl enable') for file in "${RECORD%/*}"/usr/local/bin/*; do echo "installed ${file##*/}" >>"$RECORD"; done ;;
esac
"#;

/// Does what the READMEs tell the user to do with the settings.
const EDITOR: &str = "#!/bin/bash\nsed -i '/\"ClientSecret\"/d' \"$1\"\n";

/// The system directories that the READMEs write to.
const SYSTEM: [&str; 3] = ["/etc/hawser", "/etc/systemd/system", "/usr/local/bin"];

/// What is there after all commands of a README were run.
struct Pasted {
    root: TempDir,
    folder: PathBuf,
    /// The commands that were replaced.
    recorded: Vec<String>,
}

impl Pasted {
    fn run(example: &str) -> Self {
        let root_dir = tempfile::tempdir().unwrap();
        let (path, checkout) = (root_dir.path(), root_dir.path().join("checkout"));
        let programs = path.join("programs");
        for folder in [&checkout, &programs, &path.join("etc/systemd/system"), &path.join("usr/local/bin")] {
            fs::create_dir_all(folder).unwrap();
        }
        let copied = ["examples", "appsettings.example.json", "Cargo.toml", "Dockerfile"];
        let copied = copied.map(|name| root().join(name));
        assert!(Command::new("cp").arg("-r").args(copied).arg(&checkout).status().unwrap().success());
        for program in ["bash", "cp", "install", "sed"] {
            symlink(on_path(program), programs.join(program)).unwrap();
        }
        for program in ["cargo", "docker", "journalctl", "kubectl", "systemctl", "useradd"] {
            write_program(&programs.join(program), RECORDER);
        }
        write_program(&programs.join("editor"), EDITOR);

        let mut script = shell_blocks(&project(&format!("examples/{example}/README.md"))).join("\n");
        for directory in SYSTEM {
            script = script.replace(&format!(" {directory}"), &format!(" {}{directory}", path.display()));
        }
        let is_foreign = |word: &&str| {
            let harmless = ["/var/lib/hawser", "/usr/sbin/nologin"];
            word.starts_with('/') && !word.starts_with(path.to_str().unwrap()) && !harmless.contains(word)
        };
        assert_eq!(script.split_whitespace().find(is_foreign), None, "not for a test to touch");
        let folder = checkout.join("examples").join(example);
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &script])
            .current_dir(&folder)
            .env("PATH", &programs)
            .env("EDITOR", "editor")
            .env("RECORD", path.join("recorded"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
        let recorded = fs::read_to_string(path.join("recorded")).unwrap_or_default();
        let recorded = recorded.lines().map(str::to_owned).collect();
        Self { root: root_dir, folder, recorded }
    }

    /// The arguments of the one command that starts like this.
    #[track_caller]
    fn arguments(&self, command: &str) -> &str {
        let found = self.recorded.iter().filter_map(|line| line.strip_prefix(command));
        let found: Vec<&str> = found.collect();
        let [found] = found[..] else { panic!("{command} in {:#?}", self.recorded) };
        found.trim()
    }

    /// The path of a system directory or file in this test.
    fn system(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }
}

fn on_path(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{program} is not on PATH"))
}

/// The variables in a file with one per line.
fn variables_in(file: &std::path::Path) -> Variables {
    fs::read_to_string(file).unwrap().lines().map(variable).collect()
}

const SECRET: &str = "Runner__Credentials__ClientSecret";

#[test]
fn the_commands_for_hello_apply_and_destroy_it() {
    let area = tempfile::tempdir().unwrap();
    // Answers the question that the README mentions.
    let hawser = format!("hawser() {{ '{HAWSER}' \"$@\" --yes; }}\n");
    let script = shell_blocks(&project("examples/hello/README.md")).join("\n");
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &(hawser + &script)])
        .current_dir(root().join("examples/hello"))
        .env("HAWSER_LOCAL_DIR", area.path())
        .env_remove("TF_CLI_CONFIG_FILE")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", String::from_utf8_lossy(&output.stderr));
    for text in ["Hello, world!", "Dear Ada,", "Hello, Ada!", "Dear Linus,", "(sensitive)", "Destroyed"] {
        assert!(out.contains(text), "no {text:?} in\n{out}");
    }
    assert!(!out.contains("open sesame"), "{out}");
}

#[test]
fn the_commands_for_pulumi_update_and_destroy_it() {
    let Some(engine) = real(EngineName::PULUMI) else { return };
    let home = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::iter::once(engine.folder.clone()).chain(std::env::split_paths(&path));
    // Answers the question that the README mentions.
    let hawser = format!("hawser() {{ '{HAWSER}' \"$@\" --yes; }}\n");
    let script = shell_blocks(&project("examples/pulumi/README.md")).join("\n");
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &(hawser + &script)])
        .current_dir(root().join("examples/pulumi"))
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("HOME", home.path())
        .env("PULUMI_HOME", home.path().join("pulumi-home"))
        .env("HAWSER_LOCAL_DIR", home.path().join("data"))
        .env_remove("PULUMI_ACCESS_TOKEN")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", String::from_utf8_lossy(&output.stderr));
    for text in ["Hello, world!", "Hello, Ada!", "Planned in", "Destroyed"] {
        assert!(out.contains(text), "no {text:?} in\n{out}");
    }
    assert!(home.path().join("pulumi-state/.pulumi").is_dir());
}

#[test]
fn the_commands_for_compose_lead_to_complete_settings() {
    let pasted = Pasted::run("compose");
    let service = compose_service();
    let built = pasted.arguments("docker build --tag");
    let base = text(&service["build"]["dockerfile_inline"]).lines().next().unwrap().strip_prefix("FROM ");
    assert_eq!(built.split(' ').next(), base);

    let secrets = variables_in(&pasted.folder.join(text(&service["env_file"])));
    assert_eq!(secrets[SECRET], "the secret");
    let mut variables = image_environment();
    variables.extend(strings(&service["environment"]));
    variables.extend(secrets);
    let mounted =
        items(&service["volumes"]).iter().map(text).find(|volume| volume.starts_with("./")).unwrap();
    let (file, target) = mounted.trim_end_matches(":ro").split_once(':').unwrap();
    // The runner reads it from the current directory.
    assert_eq!(target, format!("{}/appsettings.json", dockerfile("WORKDIR")));
    let settings = pasted.folder.join(file);
    assert!(settings.is_file(), "{}", settings.display());
    let effective = effective_settings(settings.parent().unwrap(), &variables);
    assert!(effective.contains("environment variable Runner__Instance"), "{effective}");
}

#[test]
fn the_commands_for_kubernetes_lead_to_complete_settings() {
    let pasted = Pasted::run("kubernetes");
    let pod = manifest("StatefulSet")["spec"]["template"]["spec"].clone();
    let container = &items(&pod["containers"])[0];
    let image = text(&container["image"]);
    assert_eq!(pasted.arguments("docker build --tag").split(' ').next(), Some(image));
    assert_eq!(pasted.arguments("docker push"), image);
    assert!(image.ends_with(&format!(":{}", env!("CARGO_PKG_VERSION"))), "{image}");

    let (name, secret) = pasted.arguments("kubectl create secret generic").split_once(' ').unwrap();
    let (secret, value) = variable(secret.strip_prefix("--from-literal=").unwrap());
    assert_eq!((secret.as_str(), value.as_str()), (SECRET, "the secret"));
    let config = manifest("ConfigMap");
    let from = items(&container["envFrom"]);
    assert_eq!(from[0]["configMapRef"]["name"], config["metadata"]["name"]);
    assert_eq!(text(&from[1]["secretRef"]["name"]), name);

    let mut variables = image_environment();
    variables.extend(strings(&config["data"]));
    variables.insert(secret, value);
    for entry in items(&container["env"]) {
        assert_eq!(text(&entry["valueFrom"]["fieldRef"]["fieldPath"]), "metadata.name");
        variables.insert(text(&entry["name"]).to_owned(), "hawser-0".to_owned());
    }
    let effective = effective_settings(pasted.root.path(), &variables);
    let instance = effective.lines().find(|line| line.starts_with("Runner.Instance ")).unwrap();
    assert!(instance.contains("hawser-0"), "{instance}");
}

#[test]
fn the_commands_for_systemd_install_what_the_unit_uses() {
    let pasted = Pasted::run("systemd");
    let unit = Unit::read();
    assert!(pasted.system("/etc/systemd/system/hawser.service").is_file());
    assert_eq!(pasted.arguments("systemctl enable --now"), "hawser");
    let user = pasted.arguments("useradd");
    assert!(user.ends_with(&format!(" {}", unit.one("Service.User"))), "{user}");
    assert!(user.contains("--home-dir /var/lib/hawser "), "{user}");

    let (program, command) = unit.one("Service.ExecStart").split_once(' ').unwrap();
    assert_eq!(Some(pasted.arguments("installed")), program.strip_prefix("/usr/local/bin/"), "at the start");
    assert_eq!(command, "run");
    let mode = |path: &str| fs::metadata(pasted.system(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(program), 0o755);
    let secrets = unit.one("Service.EnvironmentFile");
    assert_eq!(mode(secrets), 0o600);
    let directory = pasted.system(unit.one("Service.WorkingDirectory"));
    assert!(directory.join("appsettings.json").is_file());

    let mut variables = unit.environment("/var/lib");
    variables.extend(variables_in(&pasted.system(secrets)));
    assert_eq!(variables[SECRET], "the secret");
    let effective = effective_settings(&directory, &variables);
    assert!(effective.contains("/var/lib/hawser/work"), "{effective}");
}
