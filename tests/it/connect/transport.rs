//! Insecure connections to the server: refused, or reported by a warning at every start.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{Client, endpoint, timing};
use crate::support::authority::Authority;
use crate::support::eventually::{eventually, in_time};
use crate::support::scripted_hub::{Answer, ScriptedHub};
use crate::support::world::HAWSER;

/// A `ServerHello` that selects TLS 1.1.
fn hello_of_tls_1_1() -> Vec<u8> {
    // version, random, no session id, TLS_RSA_WITH_AES_128_CBC_SHA, no compression
    let mut body = vec![3, 2];
    body.extend([7; 32]);
    body.extend([0, 0x00, 0x2f, 0]);
    let mut message = vec![2, 0, 0, u8::try_from(body.len()).unwrap()];
    message.extend(body);
    let mut record = vec![22, 3, 2, 0, u8::try_from(message.len()).unwrap()];
    record.extend(message);
    record
}

#[tokio::test]
async fn a_server_without_tls_1_2_is_refused() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", server.local_addr().unwrap().port());
    let mut endpoint = endpoint(&url);
    // Even if any certificate is accepted.
    endpoint.accept_any_certificate = true;
    let client = Client::with(endpoint, timing());
    let (mut stream, _) = in_time("a connection", server.accept()).await.unwrap();
    let mut record = [0; 5];
    stream.read_exact(&mut record).await.unwrap();
    let mut hello = vec![0; usize::from(u16::from_be_bytes([record[3], record[4]]))];
    stream.read_exact(&mut hello).await.unwrap();
    // The extension supported_versions: 1.3 and 1.2, and nothing else.
    let versions = [0, 43, 0, 5, 4, 3, 4, 3, 3];
    assert!(hello.windows(versions.len()).any(|part| part == versions), "{hello:02x?}");
    stream.write_all(&hello_of_tls_1_1()).await.unwrap();
    let mut answer = Vec::new();
    in_time("the end of the connection", stream.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer.first(), Some(&21), "expected an alert: {answer:02x?}");
    let problem = client.problem_with("TLS").await;
    assert!(problem.contains("Server.Url"), "{problem}");
}

#[tokio::test]
async fn any_certificate_is_accepted_only_by_the_dangerous_setting() {
    let mut hub = ScriptedHub::start_with(Some(Authority::new().expired_acceptor(&["elsewhere"]))).await;
    let mut endpoint = endpoint(&format!("https://localhost:{}", hub.address.port()));
    let problem = Client::with(endpoint.clone(), timing()).problem().await;
    assert!(problem.contains("certificate"), "{problem}");
    assert!(hub.seen("").is_empty(), "no secret was sent");
    endpoint.accept_any_certificate = true;
    let client = Client::with(endpoint, timing());
    let _peer = hub.connection().await;
    client.connected(1).await;
}

#[tokio::test]
async fn a_redirect_from_https_to_http_is_not_followed_and_no_token_goes_there() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.write_pem(&folder.path().join("ca.pem"));
    let hub = ScriptedHub::start_with(Some(authority.acceptor(&["localhost"]))).await;
    let other = ScriptedHub::start().await;
    let away = format!("http://{}/elsewhere", other.address);
    hub.script(|script| {
        script.negotiate = Some(Answer::new(200, json!({"url": away, "accessToken": "theirs"})));
    });
    let mut endpoint = endpoint(&format!("https://localhost:{}", hub.address.port()));
    endpoint.ca_file = Some(folder.path().join("ca.pem"));
    let client = Client::with(endpoint, timing());
    let problem = client.problem_with("https to plain http").await;
    assert!(problem.contains(&away), "{problem}");
    assert!(other.seen("").is_empty());
}

#[tokio::test]
async fn with_plain_http_refused_a_redirect_to_another_machine_is_not_followed() {
    let hub = ScriptedHub::start().await;
    hub.script(|script| {
        script.negotiate = Some(Answer::new(200, json!({"url": "http://192.0.2.1/elsewhere"})));
    });
    let mut endpoint = endpoint(&format!("http://{}", hub.address));
    endpoint.refuse_plain_http = true;
    Client::with(endpoint, timing()).problem_with("Server.RefusePlainHttp").await;
}

/// `hawser run` with this server URL.
fn run(folder: &Path, url: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(HAWSER);
    command
        .arg("run")
        .current_dir(folder)
        .env("Runner__Id", "11111111-2222-3333-4444-555555555555")
        .env("Runner__OrganizationId", "11111111-2222-3333-4444-555555555556")
        .env("Runner__Credentials__ClientId", "client")
        .env("Runner__Credentials__ClientSecret", "hush-hush-hush")
        .env("WorkingDirectory__WorkingDirectory", folder.join("work"))
        .env("WorkingDirectory__TempDirectory", folder.join("temp"))
        .env("Server__Url", url)
        .env("NO_COLOR", "1")
        .envs(settings.iter().copied())
        .stdout(std::fs::File::create(folder.join("log")).unwrap())
        .stderr(std::fs::File::options().append(true).create(true).open(folder.join("errors")).unwrap());
    command
}

/// Runs twice until the log contains all these texts, because the warning is logged at every start.
async fn warns_at_every_start(url: &str, settings: &[(&str, &str)], texts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut child = run(folder.path(), url, settings).spawn().unwrap();
        let log = || std::fs::read_to_string(folder.path().join("log")).unwrap();
        eventually(&format!("{texts:?} in the log"), || texts.iter().all(|part| log().contains(part))).await;
        assert!(log().lines().any(|line| line.contains("WARN") && line.contains(texts[0])), "{}", log());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[tokio::test]
async fn plain_http_to_another_machine_is_warned_about_at_every_start() {
    warns_at_every_start("http://192.0.2.1:1/", &[], &["Server.Url", "plain http", "RefusePlainHttp"]).await;
}

#[tokio::test]
async fn plain_http_to_another_machine_is_a_settings_error_if_it_is_forbidden() {
    let folder = tempfile::tempdir().unwrap();
    let refuse = [("Server__RefusePlainHttp", "true")];
    let status = run(folder.path(), "http://0.0.0.0:1/", &refuse).status().unwrap();
    let errors = std::fs::read_to_string(folder.path().join("errors")).unwrap();
    assert_eq!(status.code(), Some(78), "{errors}");
    assert!(
        errors.contains("Server.RefusePlainHttp") && errors.contains("https") && !errors.contains("hush"),
        "{errors}"
    );
}

#[tokio::test]
async fn plain_http_to_this_machine_is_not_reported() {
    let hub = ScriptedHub::start().await;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}", hub.address);
    let mut child = run(folder.path(), &url, &[("Server__RefusePlainHttp", "true")]).spawn().unwrap();
    eventually("a token request", || !hub.seen("/connect/token").is_empty()).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("plain http"), "{log}");
}

#[tokio::test]
async fn accepting_any_certificate_is_warned_about_at_every_start() {
    let hub = ScriptedHub::start_with(Some(Authority::new().acceptor(&["localhost"]))).await;
    let url = format!("https://localhost:{}", hub.address.port());
    let setting = ("Server__DangerouslyAcceptAnyCertificate", "true");
    warns_at_every_start(&url, &[setting], &["Server.DangerouslyAcceptAnyCertificate", "impersonate"]).await;
    let folder = tempfile::tempdir().unwrap();
    let mut child = run(folder.path(), &url, &[setting]).spawn().unwrap();
    eventually("a token request", || !hub.seen("/connect/token").is_empty()).await;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn an_extra_authority_does_not_replace_those_of_the_system() {
    let folder = tempfile::tempdir().unwrap();
    let (system, extra) = (Authority::new(), Authority::new());
    let pem = |name: &str| folder.path().join(name).display().to_string();
    system.write_pem(&folder.path().join("system.pem"));
    extra.write_pem(&folder.path().join("extra.pem"));
    let settings = [("SSL_CERT_FILE", &*pem("system.pem")), ("Server__CaFile", &*pem("extra.pem"))];
    for authority in [&system, &extra] {
        let hub = ScriptedHub::start_with(Some(authority.acceptor(&["localhost"]))).await;
        let url = format!("https://localhost:{}", hub.address.port());
        let mut child = run(folder.path(), &url, &settings).spawn().unwrap();
        eventually("a token request", || !hub.seen("/connect/token").is_empty()).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
