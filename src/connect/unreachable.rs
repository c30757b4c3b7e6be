//! Finds out from an HTTP client's error why the server could not be reached.
//!
//! The client wraps errors in several layers. The innermost ones are known types (`std::io::Error`, `rustls::Error`).
//! Name resolution and proxy tunnels have private types, which can only be recognized by their text.

use std::error::Error;
use std::io;

use hyper_util::client::proxy::matcher::Matcher;
use rustls::CertificateError;
use url::Url;

use super::http::is_this_machine;

/// Why the server, or the proxy in front of it, could not be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreachable {
    #[error("failed to resolve the host name of {peer}: check {setting}")]
    UnknownHost { peer: String, setting: &'static str, source: reqwest::Error },
    #[error("{peer} refused the connection: check {setting}, and that it is running")]
    Refused { peer: String, setting: &'static str, source: reqwest::Error },
    #[error("connection to {peer} timed out: check {setting} and the network")]
    TimedOut { peer: String, setting: &'static str, source: Option<reqwest::Error> },
    #[error(
        "the certificate of {peer} was issued by an untrusted authority: \
         put that authority's certificate in a PEM file and set Server.CaFile to it"
    )]
    UnknownAuthority { peer: String, source: reqwest::Error },
    #[error(
        "the certificate of {peer} has expired or is not valid yet: renew it on the server in Server.Url, \
         or correct this machine's clock"
    )]
    Expired { peer: String, source: reqwest::Error },
    #[error("the certificate of {peer} is for another name: check the host in Server.Url")]
    OtherName { peer: String, source: reqwest::Error },
    #[error("{peer} does not speak TLS: check the scheme (https or http) and port in Server.Url")]
    NotTls { peer: String, source: reqwest::Error },
    #[error("TLS with {peer} failed ({reason}): check Server.Url and Server.CaFile")]
    Tls { peer: String, reason: rustls::Error, source: reqwest::Error },
    #[error("{proxy} rejected the credentials: check the user and password in HTTPS_PROXY")]
    ProxyCredentials { proxy: String, source: reqwest::Error },
    #[error(
        "{proxy} refused CONNECT to {peer}: check HTTPS_PROXY, Server.Url, and whether NO_PROXY should include the host"
    )]
    ProxyRefused { proxy: String, peer: String, source: reqwest::Error },
    #[error("{peer} does not speak HTTP: check the scheme (https or http) and port in Server.Url")]
    NotHttp { peer: String, source: reqwest::Error },
    #[error("request to {peer} failed ({reason}): check {setting} and the network")]
    Other { peer: String, setting: &'static str, reason: String, source: reqwest::Error },
}

impl Unreachable {
    /// There was no response from `url` within our own time limit.
    pub(super) fn timed_out(url: &Url) -> Self {
        let (peer, setting) = first_hop(url);
        Self::TimedOut { peer, setting, source: None }
    }

    pub(super) fn new(url: &Url, source: reqwest::Error) -> Self {
        // The URL of the error may contain a token in its query.
        let source = source.without_url();
        let chain = ErrorChain::read(&source);
        let (hop, setting) = first_hop(url);
        let peer = authority(url);
        match chain {
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

/// What is known from the layers of an error.
#[derive(Debug, Default)]
struct ErrorChain {
    /// The text of the proxy tunnel's error.
    tunnel: Option<String>,
    /// The connection to the proxy itself works.
    connected: bool,
    dns: bool,
    not_http: bool,
    tls: Option<rustls::Error>,
    io: Option<io::ErrorKind>,
    innermost: String,
}

impl ErrorChain {
    fn read(error: &(dyn Error + 'static)) -> Self {
        let mut chain = Self { connected: true, ..Self::default() };
        let mut layer = Some(error);
        while let Some(error) = layer {
            let text = error.to_string();
            if text.starts_with("tunnel error") {
                chain.connected = !text.contains("failed to create underlying connection");
                chain.tunnel = Some(text.clone());
            }
            chain.dns |= text == "dns error";
            chain.innermost = text;
            if let Some(http) = error.downcast_ref::<hyper::Error>() {
                chain.not_http |= http.is_parse();
            }
            if let Some(tls) = error.downcast_ref::<rustls::Error>() {
                chain.tls = Some(tls.clone());
            }
            // `source` of an I/O error skips the error that it wraps.
            layer = match error.downcast_ref::<io::Error>() {
                Some(io) => {
                    chain.io = Some(io.kind());
                    io.get_ref().map(|inner| inner as &(dyn Error + 'static))
                }
                None => error.source(),
            };
        }
        chain
    }
}

/// The first hop of a connection to `url`, and the setting it comes from: a proxy variable or `Server.Url`.
fn first_hop(url: &Url) -> (String, &'static str) {
    let uri = url.as_str().parse().ok().filter(|_| !is_this_machine(url));
    match uri.and_then(|uri| Matcher::from_system().intercept(&uri)) {
        Some(proxy) => {
            let setting = if url.scheme() == "https" { "HTTPS_PROXY" } else { "HTTP_PROXY" };
            // Without the user and password of the proxy's URL.
            let address = proxy.uri().authority().map(|authority| {
                let text = authority.as_str();
                text.rsplit_once('@').map_or(text, |(_, address)| address).to_owned()
            });
            (format!("proxy {}", address.unwrap_or_default()), setting)
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
