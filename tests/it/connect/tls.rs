//! TLS: extra authorities, and a message for each kind of failure.

use super::{Client, endpoint, timing};
use crate::support::authority::Authority;
use crate::support::scripted_hub::ScriptedHub;

fn client(url: &str, ca_file: Option<&std::path::Path>) -> Client {
    let mut endpoint = endpoint(url);
    endpoint.ca_file = ca_file.map(Into::into);
    Client::with(endpoint, timing())
}

#[tokio::test]
async fn a_private_authority_requires_the_ca_file() {
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    let authority = Authority::new();
    authority.write_pem(&ca_file);
    let mut hub = ScriptedHub::start_with(Some(authority.acceptor(&["localhost"]))).await;
    let url = format!("https://localhost:{}", hub.address.port());

    let problem = client(&url, None).problem().await;
    assert!(problem.contains("untrusted") && problem.contains("Server.CaFile"), "{problem}");

    let trusting = client(&url, Some(&ca_file));
    let mut peer = hub.connection().await;
    trusting.connected(1).await;
    let call = trusting.hub.start("M", "[]".to_owned()).await.unwrap();
    let id = peer.read_call().await["invocationId"].clone();
    peer.write_json(&serde_json::json!({"type": 3, "invocationId": id, "result": 1})).await;
    assert_eq!(call.answer().await.unwrap(), 1);
}

#[tokio::test]
async fn a_certificate_with_another_name_and_an_expired_one_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    let authority = Authority::new();
    authority.write_pem(&ca_file);

    let hub = ScriptedHub::start_with(Some(authority.acceptor(&["elsewhere.example.com"]))).await;
    let url = format!("https://localhost:{}", hub.address.port());
    let problem = client(&url, Some(&ca_file)).problem().await;
    assert!(problem.contains("another name") && problem.contains("Server.Url"), "{problem}");

    let hub = ScriptedHub::start_with(Some(authority.expired_acceptor(&["localhost"]))).await;
    let url = format!("https://localhost:{}", hub.address.port());
    let problem = client(&url, Some(&ca_file)).problem().await;
    assert!(problem.contains("expired") && problem.contains("clock"), "{problem}");
}

#[tokio::test]
async fn a_wrong_scheme_is_reported_in_both_directions() {
    let plain = ScriptedHub::start().await;
    let url = format!("https://localhost:{}", plain.address.port());
    let problem = client(&url, None).problem().await;
    assert!(problem.contains("does not speak TLS") && problem.contains("Server.Url"), "{problem}");

    let secure = ScriptedHub::start_with(Some(Authority::new().acceptor(&["localhost"]))).await;
    let url = format!("http://localhost:{}", secure.address.port());
    let problem = client(&url, None).problem().await;
    assert!(problem.contains("scheme") && problem.contains("Server.Url"), "{problem}");
}
