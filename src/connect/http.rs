//! The HTTP client for token, negotiate and upgrade, so that root certificates, proxies and timeouts are set in one place.
//!
//! Proxies come from the environment: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`, in upper or lower case, with
//! user and password in the URL.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, ClientBuilder};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};
use tracing::debug;
use url::Url;

use super::endpoint::Endpoint;
use crate::base::tls::{AuthoritiesError, authorities};

/// Unusable settings. Retrying does not help.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("Server.Url {url} is not an http or https URL with a host")]
    Url { url: String },
    #[error("Server.CaFile {path} {source}", path = path.display())]
    CaFile { path: PathBuf, source: AuthoritiesError },
    #[error(
        "Server.Url {url} is plain http to another machine, which Server.RefusePlainHttp forbids: use https, or a server \
         on this machine"
    )]
    PlainHttp { url: String },
    #[error("failed to set up TLS: {source}")]
    Tls { source: rustls::Error },
    #[error("failed to set up the HTTP client: {source}")]
    Client { source: reqwest::Error },
}

/// The client for the hub. A server on this machine is reached without a proxy, as in Go and .NET: a proxy could not
/// reach it, and `hawser local` must work even if the environment names a proxy.
pub(super) fn hub_client(endpoint: &Endpoint, connect_timeout: Duration) -> Result<Client, SetupError> {
    let tls = tls(endpoint)?;
    let mut builder = if endpoint.accept_any_certificate {
        // Required by the client's own TLS configuration. A second call has no effect.
        let _ = rustls::crypto::ring::default_provider().install_default();
        builder(connect_timeout).tls_danger_accept_invalid_certs(true)
    } else {
        builder(connect_timeout).tls_backend_preconfigured(tls)
    };
    if is_this_machine(&endpoint.server_url) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|source| SetupError::Client { source })
}

/// The client for registries. It always checks certificates, even if the check is disabled for the server.
pub(super) fn client(endpoint: &Endpoint, connect_timeout: Duration) -> Result<Client, SetupError> {
    // Callers follow redirects themselves, because they check the targets.
    let builder = builder(connect_timeout).tls_backend_preconfigured(tls(endpoint)?);
    builder.build().map_err(|source| SetupError::Client { source })
}

/// Whether a URL points to this machine.
pub(super) fn is_this_machine(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|mapped| mapped.is_loopback())
        }
        None => false,
    }
}

/// TLS 1.2 or later, with the system's root certificates and those of `Server.CaFile`.
fn tls(endpoint: &Endpoint) -> Result<ClientConfig, SetupError> {
    let url = &endpoint.server_url;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(SetupError::Url { url: url.to_string() });
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|source| SetupError::Tls { source })?
        .with_root_certificates(roots(endpoint.ca_file.as_deref())?)
        .with_no_client_auth();
    // Only HTTP/1.1 can be upgraded to a WebSocket.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

fn builder(connect_timeout: Duration) -> ClientBuilder {
    Client::builder()
        .http1_only()
        // The secret is only sent to the configured URL.
        .redirect(reqwest::redirect::Policy::none())
        // A reconnect follows a network failure, so old connections are not reused.
        .pool_max_idle_per_host(0)
        .connect_timeout(connect_timeout)
        .user_agent(concat!("hawser/", env!("CARGO_PKG_VERSION")))
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, SetupError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        debug!(%error, "failed to load a system root certificate");
    }
    let (added, unusable) = roots.add_parsable_certificates(system.certs);
    debug!(added, unusable, "system root certificates loaded");
    if let Some(path) = ca_file {
        let unusable = |source| SetupError::CaFile { path: path.to_owned(), source };
        roots.extend(authorities(path).map_err(unusable)?.roots);
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(url: &str, ca: Option<&Path>) -> Result<Client, SetupError> {
        let endpoint = Endpoint {
            server_url: url.parse().unwrap(),
            organization_id: uuid::Uuid::nil(),
            runner_id: uuid::Uuid::nil(),
            instance: String::new(),
            client_id: String::new(),
            client_secret: "".into(),
            ca_file: ca.map(Into::into),
            max_message_bytes: 4096,
            refuse_plain_http: false,
            accept_any_certificate: false,
        };
        client(&endpoint, Duration::from_secs(1))
    }

    #[test]
    fn a_server_url_that_is_not_http_is_refused() {
        assert!(matches!(attempt("ftp://h/", None), Err(SetupError::Url { .. })));
        assert!(matches!(attempt("data:x", None), Err(SetupError::Url { .. })));
        assert!(attempt("http://h/", None).is_ok());
    }

    #[test]
    fn an_unusable_ca_file_is_reported_with_the_setting_and_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.pem");
        let error = attempt("https://h/", Some(&missing)).unwrap_err().to_string();
        assert!(error.contains("Server.CaFile") && error.contains("missing.pem"), "{error}");

        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "no certificate\n").unwrap();
        let error = attempt("https://h/", Some(&empty)).unwrap_err();
        assert!(matches!(error, SetupError::CaFile { source: AuthoritiesError::Empty, .. }), "{error}");

        let broken = folder.path().join("broken.pem");
        std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let error = attempt("https://h/", Some(&broken)).unwrap_err();
        assert!(matches!(error, SetupError::CaFile { source: AuthoritiesError::Unusable(_), .. }), "{error}");
    }
}
