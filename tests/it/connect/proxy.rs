//! Proxies come from the environment of the process, so each test starts this test binary again with another
//! environment and checks the status that the client prints.

use std::path::Path;

use hawser_signalr::ConnectionStatus;
use tokio::process::Command;

use super::{Client, endpoint, timing};
use crate::support::authority::Authority;
use crate::support::eventually::in_time;
use crate::support::proxy::Proxy;
use crate::support::scripted_hub::ScriptedHub;

/// Runs in the process that the other tests start.
#[tokio::test]
#[ignore = "started by the other tests with their own environment"]
async fn client_process() {
    let Ok(url) = std::env::var("HAWSER_TEST_URL") else { return };
    let mut endpoint = endpoint(&url);
    endpoint.ca_file = std::env::var_os("HAWSER_TEST_CA").map(Into::into);
    let client = Client::with(endpoint, timing());
    let mut status = client.hub.status();
    let news = |status: &ConnectionStatus| !matches!(status, ConnectionStatus::Connecting { problem: None });
    let status = in_time("a status", status.wait_for(news)).await.unwrap().clone();
    println!("REPORT {status:?}");
}

async fn report(url: &str, ca_file: &Path, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "connect::proxy::client_process", "--ignored", "--nocapture"])
        .env("HAWSER_TEST_URL", url)
        .env("HAWSER_TEST_CA", ca_file);
    for name in ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    let output = command.envs(environment.iter().copied()).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let at = text.find("REPORT ").unwrap_or_else(|| panic!("no report in {text}"));
    text[at..].lines().next().unwrap_or_default().to_owned()
}

struct Bench {
    hub: ScriptedHub,
    proxy: Proxy,
    folder: tempfile::TempDir,
}

impl Bench {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.write_pem(&folder.path().join("ca.pem"));
        let hub = ScriptedHub::start_with(Some(authority.acceptor(&["hub.test", "0.0.0.0"]))).await;
        let proxy = Proxy::start(hub.address).await;
        Self { hub, proxy, folder }
    }

    fn proxy_url(&self, credentials: &str) -> String {
        format!("http://{credentials}{}", self.proxy.address)
    }

    async fn report(&self, url: &str, environment: &[(&str, &str)]) -> String {
        report(url, &self.folder.path().join("ca.pem"), environment).await
    }
}

#[tokio::test]
async fn everything_goes_through_the_proxy_with_its_credentials() {
    let mut bench = Bench::start().await;
    let proxy = bench.proxy_url("user:pass@");
    let ca_file = bench.folder.path().join("ca.pem");
    // Only the proxy knows the host, and TLS goes through it to the hub's own certificate.
    let reporting = tokio::spawn(async move {
        report("https://hub.test:8443/prefix", &ca_file, &[("HTTPS_PROXY", &proxy)]).await
    });
    let mut peer = bench.hub.connection().await;
    assert_eq!(in_time("the report", reporting).await.unwrap(), "REPORT Connected { generation: 1 }");
    peer.gone().await;
    assert_eq!(bench.proxy.asked_for(), ["hub.test:8443"; 3]);
}

#[tokio::test]
async fn a_proxy_that_rejects_the_credentials_is_reported_without_the_password() {
    let bench = Bench::start().await;
    let proxy = bench.proxy_url("user:wrong@");
    let report = bench.report("https://hub.test:8443", &[("HTTPS_PROXY", &proxy)]).await;
    assert!(report.contains("rejected the credentials") && report.contains("HTTPS_PROXY"), "{report}");
    assert!(report.contains(&bench.proxy.address.to_string()) && !report.contains("wrong"), "{report}");
}

#[tokio::test]
async fn a_proxy_that_refuses_the_tunnel_is_reported() {
    let bench = Bench::start().await;
    let proxy = bench.proxy_url("user:pass@");
    let report = bench.report("https://forbidden.test", &[("HTTPS_PROXY", &proxy)]).await;
    assert!(report.contains("refused CONNECT to forbidden.test"), "{report}");
    assert!(report.contains("NO_PROXY"), "{report}");
}

#[tokio::test]
async fn a_proxy_that_is_down_or_unknown_names_the_variable() {
    let bench = Bench::start().await;
    // Bound, but not listening.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed_port = socket.local_addr().unwrap();
    let proxy = format!("http://user:pass@{closed_port}");
    let report = bench.report("https://hub.test", &[("HTTPS_PROXY", &proxy)]).await;
    assert!(report.contains(&format!("proxy {closed_port} refused the connection")), "{report}");
    assert!(report.contains("HTTPS_PROXY") && !report.contains("pass"), "{report}");

    let unknown = [("https_proxy", "http://no-such-proxy.invalid:3128")];
    let report = bench.report("https://hub.test", &unknown).await;
    assert!(report.contains("no-such-proxy.invalid:3128") && report.contains("HTTPS_PROXY"), "{report}");
}

#[tokio::test]
async fn a_host_in_no_proxy_is_reached_directly() {
    let mut bench = Bench::start().await;
    // This address leads to this machine, but the client does not know that, so only NO_PROXY can bypass the proxy.
    let url = format!("https://0.0.0.0:{}", bench.hub.address.port());
    let nowhere = ("HTTPS_PROXY", "http://no-such-proxy.invalid:1");
    let through_proxy = bench.report(&url, &[nowhere]).await;
    assert!(through_proxy.contains("no-such-proxy.invalid"), "{through_proxy}");

    let ca_file = bench.folder.path().join("ca.pem");
    let reporting =
        tokio::spawn(async move { report(&url, &ca_file, &[nowhere, ("NO_PROXY", "x.test,0.0.0.0")]).await });
    let _peer = bench.hub.connection().await;
    assert_eq!(in_time("the report", reporting).await.unwrap(), "REPORT Connected { generation: 1 }");
    assert!(bench.proxy.asked_for().is_empty());
}

#[tokio::test]
async fn a_server_on_this_machine_is_reached_without_the_proxy_and_the_proxy_is_not_blamed() {
    let bench = Bench::start().await;
    // Bound, but not listening.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed_port = socket.local_addr().unwrap();
    let proxy = bench.proxy_url("user:pass@");
    let report = bench.report(&format!("https://{closed_port}"), &[("HTTPS_PROXY", &proxy)]).await;
    assert!(report.contains(&format!("{closed_port} refused the connection: check Server.Url")), "{report}");
    assert!(bench.proxy.asked_for().is_empty());
}
