//! Reads out of an HTTP client's error why the server could not be reached.
//!
//! The client wraps what happened in several layers. The innermost ones are known types (`std::io::Error`,
//! `rustls::Error`); name resolution and the proxy's tunnel have private types, which can be told by their text only.

use std::error::Error;
use std::io;

use hyper_util::client::proxy::matcher::Matcher;
use rustls::CertificateError;
use url::Url;

use super::http::is_this_machine;

/// Why the server, or the proxy before it, could not be reached or spoken to.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreachable {
    #[error("the host name of {peer} cannot be resolved: check {setting}")]
    UnknownHost { peer: String, setting: &'static str, source: reqwest::Error },
    #[error("{peer} does not accept connections: check {setting}, and that it is running")]
    Refused { peer: String, setting: &'static str, source: reqwest::Error },
    #[error("{peer} did not answer in time: check {setting} and the network between")]
    TimedOut { peer: String, setting: &'static str, source: Option<reqwest::Error> },
    #[error(
        "the certificate of {peer} comes from an authority that is not trusted here: \
         put that authority's certificate into a PEM file and name it in Server.CaFile"
    )]
    UnknownAuthority { peer: String, source: reqwest::Error },
    #[error(
        "the certificate of {peer} has run out or is not valid yet: renew it on the server of Server.Url, \
         or set this machine's clock"
    )]
    Expired { peer: String, source: reqwest::Error },
    #[error("the certificate of {peer} is for another name: check the host in Server.Url")]
    OtherName { peer: String, source: reqwest::Error },
    #[error("{peer} does not speak TLS: check scheme (https or http) and port in Server.Url")]
    NotTls { peer: String, source: reqwest::Error },
    #[error("TLS with {peer} failed ({reason}): check Server.Url and Server.CaFile")]
    Tls { peer: String, reason: rustls::Error, source: reqwest::Error },
    #[error("the proxy {proxy} wants other credentials: check user and password in HTTPS_PROXY")]
    ProxyCredentials { proxy: String, source: reqwest::Error },
    #[error(
        "the proxy {proxy} opens no way to {peer}: check HTTPS_PROXY, Server.Url, and whether NO_PROXY should name the host"
    )]
    ProxyRefused { proxy: String, peer: String, source: reqwest::Error },
    #[error("{peer} does not speak HTTP: check scheme (https or http) and port in Server.Url")]
    NotHttp { peer: String, source: reqwest::Error },
    #[error("talking to {peer} failed ({reason}): check {setting} and the network between")]
    Other { peer: String, setting: &'static str, reason: String, source: reqwest::Error },
}

impl Unreachable {
    /// Nothing came from `url` for as long as we wait.
    pub(super) fn timed_out(url: &Url) -> Self {
        let (peer, setting) = first_hop(url);
        Self::TimedOut { peer, setting, source: None }
    }

    pub(super) fn new(url: &Url, source: reqwest::Error) -> Self {
        // The URL of the error may hold a token in its query.
        let source = source.without_url();
        let found = ErrorChain::read(&source);
        let (hop, setting) = first_hop(url);
        let peer = authority(url);
        match found {
            ErrorChain { tunnel: Some(text), connected: true, .. }
                if text.contains("authorization required") =>
            {
                Self::ProxyCredentials { proxy: hop, source }
            }
            ErrorChain { tunnel: Some(_), connected: true, .. } => {
                Self::ProxyRefused { proxy: hop, peer, source }
            }
            ErrorChain { tls: Some(reason), .. } => Self::tls(peer, reason, source),
            ErrorChain { dns: true, .. } => Self::UnknownHost { peer: hop, setting, source },
            ErrorChain { io: Some(io::ErrorKind::ConnectionRefused), .. } => {
                Self::Refused { peer: hop, setting, source }
            }
            ErrorChain { io: Some(io::ErrorKind::TimedOut), .. } => {
                Self::TimedOut { peer: hop, setting, source: Some(source) }
            }
            _ if source.is_timeout() => Self::TimedOut { peer: hop, setting, source: Some(source) },
            ErrorChain { not_http: true, .. } => Self::NotHttp { peer, source },
            ErrorChain { innermost, .. } => Self::Other { peer: hop, setting, reason: innermost, source },
        }
    }

    fn tls(peer: String, reason: rustls::Error, source: reqwest::Error) -> Self {
        use CertificateError as C;
        match reason {
            rustls::Error::InvalidCertificate(C::UnknownIssuer) => Self::UnknownAuthority { peer, source },
            rustls::Error::InvalidCertificate(
                C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. },
            ) => Self::Expired { peer, source },
            rustls::Error::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => {
                Self::OtherName { peer, source }
            }
            rustls::Error::InvalidMessage(_) => Self::NotTls { peer, source },
            reason => Self::Tls { peer, reason, source },
        }
    }
}

/// What the layers of an error say.
#[derive(Debug, Default)]
struct ErrorChain {
    /// The text of the proxy tunnel's error.
    tunnel: Option<String>,
    /// There is no trouble with the connection below the tunnel.
    connected: bool,
    dns: bool,
    not_http: bool,
    tls: Option<rustls::Error>,
    io: Option<io::ErrorKind>,
    innermost: String,
}

impl ErrorChain {
    fn read(error: &(dyn Error + 'static)) -> Self {
        let mut found = Self { connected: true, ..Self::default() };
        let mut layer = Some(error);
        while let Some(error) = layer {
            let text = error.to_string();
            if text.starts_with("tunnel error") {
                found.connected = !text.contains("failed to create underlying connection");
                found.tunnel = Some(text.clone());
            }
            found.dns |= text == "dns error";
            found.innermost = text;
            if let Some(http) = error.downcast_ref::<hyper::Error>() {
                found.not_http |= http.is_parse();
            }
            if let Some(tls) = error.downcast_ref::<rustls::Error>() {
                found.tls = Some(tls.clone());
            }
            // The source of an I/O error is the source of what it wraps, which would skip what it wraps.
            layer = match error.downcast_ref::<io::Error>() {
                Some(io) => {
                    found.io = Some(io.kind());
                    io.get_ref().map(|inner| inner as &(dyn Error + 'static))
                }
                None => error.source(),
            };
        }
        found
    }
}

/// Where a connection to `url` goes first, and the setting that says so: the proxy's variable or `Server.Url`.
fn first_hop(url: &Url) -> (String, &'static str) {
    let uri = url.as_str().parse().ok().filter(|_| !is_this_machine(url));
    match uri.and_then(|uri| Matcher::from_system().intercept(&uri)) {
        Some(proxy) => {
            let setting = if url.scheme() == "https" { "HTTPS_PROXY" } else { "HTTP_PROXY" };
            // Host and port only: a proxy's URL may hold a password.
            let address = proxy.uri().authority().map(|authority| {
                let text = authority.as_str();
                text.rsplit_once('@').map_or(text, |(_, address)| address).to_owned()
            });
            (format!("the proxy {}", address.unwrap_or_default()), setting)
        }
        None => (authority(url), "Server.Url"),
    }
}

fn authority(url: &Url) -> String {
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (host, _) => host.unwrap_or_default().to_owned(),
    }
}
