//! Checks the files of the examples against the image and against what the documentation claims about them.

use std::collections::BTreeSet;

use super::*;

#[test]
fn the_examples_allow_enough_time_for_a_drain() {
    /// 30 seconds for interrupted steps, and 10 seconds for shipping (`runner/drain.rs`).
    const AFTER_THE_LIMIT: u64 = 30 + 10;
    const LIMIT: &str = "Runner__DrainTimeoutSeconds";
    let (service, config, unit) = (compose_service(), manifest("ConfigMap"), Unit::read());
    let pod = &manifest("StatefulSet")["spec"]["template"]["spec"];
    let seconds = |text: &str, unit: &str| -> u64 { text.strip_suffix(unit).unwrap().parse().unwrap() };
    let times = [
        (strings(&service["environment"])[LIMIT].clone(), seconds(text(&service["stop_grace_period"]), "s")),
        (
            strings(&config["data"])[LIMIT].clone(),
            pod["terminationGracePeriodSeconds"].as_i64().unwrap().try_into().unwrap(),
        ),
        (unit.environment("")[LIMIT].clone(), seconds(unit.one("Service.TimeoutStopSec"), "min") * 60),
    ];
    for (limit, grace) in times {
        assert!(
            seconds(&limit, "") + AFTER_THE_LIMIT < grace,
            "{limit} s and {AFTER_THE_LIMIT} s of {grace} s"
        );
    }
}

#[test]
fn the_image_starts_the_runner_in_its_home_without_root() {
    assert_eq!(dockerfile("CMD"), "[\"run\"]");
    assert!(dockerfile("ENTRYPOINT").ends_with(", \"/usr/local/bin/hawser\"]"));
    let (user, home) = (dockerfile("USER"), dockerfile("WORKDIR"));
    let (uid, gid) = user.split_once(':').unwrap();
    assert_eq!(uid, gid);
    assert!(dockerfile("RUN").contains(&format!("useradd --uid {uid} --user-group --home-dir {home} ")));
    let variables = image_environment();
    assert_eq!(variables["HOME"], home);
    for name in ["WorkingDirectory", "TempDirectory"] {
        assert!(variables[&format!("WorkingDirectory__{name}")].starts_with(&format!("{home}/")));
    }
    let version = env!("CARGO_PKG_RUST_VERSION");
    assert!(project("Dockerfile").contains(&format!("\nFROM rust:{version}-bookworm AS build\n")));
}

#[test]
fn the_compose_file_keeps_the_work_of_the_image_on_a_volume() {
    /// What Compose knows about a service, as far as an example could need it.
    const KNOWN: [&str; 14] = [
        "build",
        "cap_drop",
        "command",
        "env_file",
        "environment",
        "image",
        "init",
        "networks",
        "read_only",
        "restart",
        "security_opt",
        "stop_grace_period",
        "tmpfs",
        "volumes",
    ];
    let service = compose_service();
    for key in service.as_hash().unwrap().keys() {
        assert!(KNOWN.contains(&text(key)), "{key:?}");
    }
    let [file] = yaml("examples/compose/compose.yaml").try_into().unwrap();
    let named: Vec<&str> =
        items(&service["volumes"]).iter().map(text).filter(|it| !it.starts_with('.')).collect();
    let [(volume, target)] = named.iter().map(|it| it.split_once(':').unwrap()).collect::<Vec<_>>()[..]
    else {
        panic!("{named:?}")
    };
    assert!(file["volumes"].as_hash().unwrap().contains_key(&Yaml::String(volume.to_owned())));
    assert_eq!(target, image_environment()["WorkingDirectory__WorkingDirectory"]);
    // Otherwise each new container is a new instance.
    assert!(strings(&service["environment"]).contains_key("Runner__Instance"));
}

#[test]
fn the_stateful_set_refers_to_what_is_there() {
    let set = manifest("StatefulSet");
    let (spec, service) = (&set["spec"], manifest("Service"));
    let labels = &spec["template"]["metadata"]["labels"];
    assert_eq!(&spec["selector"]["matchLabels"], labels);
    assert_eq!(&service["spec"]["selector"], labels);
    assert_eq!(spec["serviceName"], service["metadata"]["name"]);
    for (kind, version) in [("ConfigMap", "v1"), ("Service", "v1"), ("StatefulSet", "apps/v1")] {
        assert_eq!(text(&manifest(kind)["apiVersion"]), version);
    }

    let pod = &spec["template"]["spec"];
    let names = |list: &Yaml| -> BTreeSet<String> {
        items(list).iter().map(|it| text(&it["name"]).to_owned()).collect()
    };
    let mut volumes = names(&pod["volumes"]);
    volumes.extend(
        items(&spec["volumeClaimTemplates"]).iter().map(|it| text(&it["metadata"]["name"]).to_owned()),
    );
    let (init, runner) = (&items(&pod["initContainers"])[0], &items(&pod["containers"])[0]);
    assert_eq!(names(&runner["volumeMounts"]), volumes);
    assert!(names(&init["volumeMounts"]).is_subset(&volumes));
    let mounted = |container: &Yaml, volume: &str| -> String {
        let mounts = items(&container["volumeMounts"]);
        text(&mounts.iter().find(|it| text(&it["name"]) == volume).unwrap()["mountPath"]).to_owned()
    };
    // The image starts the runner: no command of its own, and no probe for a port that is not there.
    for key in ["command", "args", "ports", "livenessProbe", "readinessProbe", "startupProbe"] {
        assert!(runner[key].is_badvalue(), "{key}");
    }
    assert_eq!(mounted(runner, "data"), dockerfile("WORKDIR"));
    let engines = &strings(&manifest("ConfigMap")["data"])["Engine__AdditionalBinaryPaths__0"];
    assert_eq!(&mounted(runner, "engines"), engines);
    let copy = items(&init["command"]).last().map(text).unwrap();
    assert_eq!(copy.trim_end_matches('/'), mounted(init, "engines"));
}

#[test]
fn the_pods_meet_the_restricted_pod_security_standard() {
    let pod = manifest("StatefulSet")["spec"]["template"]["spec"].clone();
    let context = &pod["securityContext"];
    assert_eq!(context["runAsNonRoot"].as_bool(), Some(true));
    assert_eq!(text(&context["seccompProfile"]["type"]), "RuntimeDefault");
    let user = dockerfile("USER");
    let (uid, _) = user.split_once(':').unwrap();
    for key in ["runAsUser", "runAsGroup", "fsGroup"] {
        assert_eq!(context[key].as_i64(), uid.parse().ok(), "{key}");
    }
    for container in items(&pod["initContainers"]).iter().chain(items(&pod["containers"])) {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"].as_bool(), Some(false));
        assert_eq!(context["readOnlyRootFilesystem"].as_bool(), Some(true));
        assert_eq!(items(&context["capabilities"]["drop"]), [Yaml::String("ALL".to_owned())]);
    }
    // What docs/deployment/kubernetes.md promises besides.
    assert_eq!(pod["automountServiceAccountToken"].as_bool(), Some(false));
    assert_eq!(pod["enableServiceLinks"].as_bool(), Some(false));
    assert_eq!(text(&context["fsGroupChangePolicy"]), "OnRootMismatch");
}

#[test]
fn systemd_accepts_the_unit() {
    let unit = Unit::read();
    // Without these, a restart ends the running steps.
    assert_eq!(unit.one("Service.KillMode"), "process");
    assert_eq!(unit.one("Service.Type"), "notify");
    for setting in ["PrivateTmp", "DynamicUser", "RuntimeDirectory"] {
        assert!(unit.all(&format!("Service.{setting}")).is_empty(), "{setting}");
    }
    assert_eq!(unit.one("Service.RestartPreventExitStatus"), "64 78");
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    // systemd checks that the program exists.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hawser.service");
    let text = project("examples/systemd/hawser.service").replace("/usr/local/bin/hawser", HAWSER);
    fs::write(&file, text).unwrap();
    let mut program = Command::new("systemd-analyze");
    let output = program.args(["verify", "--man=no"]).arg(&file).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    // An unknown setting is a warning. Other units of this machine may have problems of their own.
    let problems: Vec<&str> = err.lines().filter(|line| line.contains("hawser.service")).collect();
    assert!(problems.is_empty(), "{problems:#?}");
}
