//! The logins of Pulumi: where they go, with which token, and that they are private to their module.

use std::fs;
use std::io::Read as _;

use hawser_contract::{EngineName, EngineTask, FlagLists, InitOptions, PulumiFlag, Task, TaskRequest};

use crate::support::pulumi::{pulumi_flags, pulumi_init, pulumi_module, pulumi_plan, pulumi_task};
use crate::support::pulumi_cloud_stand_in::{EXCHANGED_TOKEN, PulumiCloudStandIn};
use crate::support::real_engines::{real, skip};
use crate::support::steps::Bench;

const PROGRAM: &str = "resources: {a: {type: 'pulumi:index:Stash', properties: {input: one}}}\n";

/// An Init with a home of its own.
fn init(bench: &Bench, flags: &[(PulumiFlag, Option<&str>)], variables: &[(&str, &str)]) -> TaskRequest {
    let home = bench.root.path().join("home").display().to_string();
    fs::create_dir_all(&home).unwrap();
    let own = [("HOME", home.as_str()), ("PULUMI_CONFIG_PASSPHRASE", "a long passphrase")];
    let variables =
        own.iter().chain(variables).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    TaskRequest::Engine(EngineTask {
        init: InitOptions { resolved_env_vars: variables.collect(), ..InitOptions::default() },
        flags: pulumi_flags(flags, &[]),
        ..EngineTask::new(Task::Init, EngineName::PULUMI)
    })
}

fn tokens(cloud: &PulumiCloudStandIn) -> Vec<String> {
    cloud.tokens().into_iter().collect()
}

/// Whether Pulumi finds the home directory in `HOME`. With cgo, it would write to the home of whoever runs the tests.
fn reads_home() -> bool {
    let program = real(EngineName::PULUMI).unwrap().folder.join("pulumi");
    let mut start = [0; 4096];
    fs::File::open(program).unwrap().read_exact(&mut start).unwrap();
    let is_dynamic = start.windows(8).any(|bytes| bytes == b"ld-linux");
    if is_dynamic {
        skip(
            "pulumi was built with cgo: remove it from the cache, and tests/engines/build builds it without",
        );
    }
    !is_dynamic
}

#[tokio::test]
async fn a_local_login_stores_states_in_the_home_directory() {
    let Some(bench) = pulumi_module(PROGRAM).filter(|_| reads_home()) else { return };
    bench.run(init(&bench, &[(PulumiFlag::LoginLocal, None)], &[])).await.completed();
    bench.run(pulumi_plan(Task::Plan, &[], FlagLists::default())).await.completed();
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed();
    let home = bench.root.path().join("home/.pulumi");
    let state = fs::read_to_string(home.join("stacks/program/snapcd.json")).unwrap();
    assert!(state.contains("pulumi:index:Stash"), "{state}");
    // The login is the module's.
    assert!(!home.join("credentials.json").exists());
    assert!(fs::read_to_string(bench.private("credentials.json")).unwrap().contains("file://~"));
}

#[tokio::test]
async fn a_login_goes_to_the_url_of_the_module_with_its_own_token() {
    let (Some(one), Some(other), Some(local)) =
        (pulumi_module(PROGRAM), pulumi_module(PROGRAM), pulumi_module(PROGRAM))
    else {
        return;
    };
    let (first, second) = (PulumiCloudStandIn::start(), PulumiCloudStandIn::start());
    for (bench, cloud, token) in [(&one, &first, "token-of-one"), (&other, &second, "token-of-other")] {
        let url = cloud.url();
        // All modules share the operator's home.
        let home = one.root.path().join("home").display().to_string();
        let variables = [("PULUMI_ACCESS_TOKEN", token), ("HOME", home.as_str())];
        let flags =
            [(PulumiFlag::CloudUrl, Some(url.as_str())), (PulumiFlag::StackName, Some("acme/program/dev"))];
        bench.run(init(bench, &flags, &variables)).await.completed();
        let kept = fs::read_to_string(bench.private("credentials.json")).unwrap();
        assert!(kept.contains(&url) && kept.contains(token), "{kept}");
    }
    assert_eq!(
        (tokens(&first), tokens(&second)),
        (vec!["token-of-one".into()], vec!["token-of-other".into()])
    );
    for cloud in [&first, &second] {
        let created = |it: &String| it.starts_with("POST /api/stacks/acme/program ");
        assert!(cloud.requests().iter().any(created), "{:#?}", cloud.requests());
    }
    assert!(!one.root.path().join("home/.pulumi/credentials.json").exists());

    // A module on this machine does not notice.
    let seen = (first.requests().len(), second.requests().len());
    local.run(pulumi_init(&local, &[])).await.completed();
    local.run(pulumi_plan(Task::Plan, &[], FlagLists::default())).await.completed();
    assert_eq!((first.requests().len(), second.requests().len()), seen);

    // The login is stored: without the token, an Init of the same module has none.
    let url = first.url();
    let fault = one.run(init(&one, &[(PulumiFlag::CloudUrl, Some(&url))], &[])).await.faulted();
    assert!(fault.message.contains("PULUMI_ACCESS_TOKEN"), "{fault:?}");
    let kept = fs::read_to_string(one.private("credentials.json")).unwrap();
    assert!(kept.contains("token-of-one"), "{kept}");
}

#[tokio::test]
async fn an_oidc_token_is_exchanged_and_is_no_argument() {
    let Some(bench) = pulumi_module(PROGRAM) else { return };
    let cloud = PulumiCloudStandIn::start();
    let (url, token) = (cloud.url(), "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl");
    let flags = [
        (PulumiFlag::CloudUrl, Some(url.as_str())),
        (PulumiFlag::OidcOrg, Some("acme")),
        (PulumiFlag::OidcToken, Some(token)),
    ];
    let ran = bench.run(init(&bench, &flags, &[])).await;
    assert!(!ran.says(token), "{:#?}", ran.log);
    ran.completed();
    assert!(cloud.requests()[0].starts_with("POST /api/oauth/token"), "{:#?}", cloud.requests());
    assert_eq!(tokens(&cloud), [EXCHANGED_TOKEN]);
    assert!(!fs::read_to_string(bench.private("init.sh")).unwrap().contains(token));
}

/// A proxy sees where the login goes. The stand-in refuses to connect to Pulumi's own service.
#[tokio::test]
async fn a_login_without_a_url_goes_to_pulumi_cloud() {
    let Some(bench) = pulumi_module(PROGRAM) else { return };
    let proxy = PulumiCloudStandIn::start();
    let url = proxy.url();
    let variables = [("PULUMI_ACCESS_TOKEN", "hush"), ("HTTPS_PROXY", url.as_str()), ("NO_PROXY", "")];
    let fault = bench.run(init(&bench, &[(PulumiFlag::LoginCloud, None)], &variables)).await.faulted();
    assert!(fault.message.starts_with("pulumi login failed"), "{fault:?}");
    assert_eq!(proxy.requests().first().map(|it| it.trim_end()), Some("CONNECT api.pulumi.com:443"));
}
