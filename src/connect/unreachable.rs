//! Finds out from an HTTP client's error why the server could not be reached.
//!
//! The client wraps errors in several layers. The innermost ones are known types (`std::io::Error`, `rustls::Error`).
//! Name resolution and proxy tunnels have private types, which can only be recognized by their text.

use std::error::Error;
use std::io;

use hyper_util::client::proxy::matcher::Matcher;
use rustls::CertificateError;
use url::Url;

use super::errors::ConnectError;
use super::http::is_this_machine;

/// There was no response from `url` within our own time limit.
pub(super) fn timed_out(url: &Url) -> ConnectError {
    let (hop, setting) = first_hop(url);
    ConnectError::soon(format!("connection to {hop} timed out: check {setting} and the network"))
}

/// The server, or the proxy in front of it, could not be reached.
pub(super) fn unreachable(url: &Url, error: reqwest::Error) -> ConnectError {
    // The URL of the error may contain a token in its query.
    let error = error.without_url();
    let (hop, setting) = first_hop(url);
    let peer = authority(url);
    ConnectError::soon(match ErrorChain::read(&error) {
        ErrorChain { tunnel: Some(text), .. } if text.contains("authorization required") => {
            format!("{hop} rejected the credentials: check the user and password in HTTPS_PROXY")
        }
        ErrorChain { tunnel: Some(_), .. } => format!(
            "{hop} refused CONNECT to {peer}: check HTTPS_PROXY, Server.Url, and whether NO_PROXY should include the host"
        ),
        ErrorChain { tls: Some(reason), .. } => tls_failed(&peer, &reason),
        ErrorChain { dns: true, .. } => format!("failed to resolve the host name of {hop}: check {setting}"),
        ErrorChain { io: Some(io::ErrorKind::ConnectionRefused), .. } => {
            format!("{hop} refused the connection: check {setting}, and that it is running")
        }
        ErrorChain { io: Some(io::ErrorKind::TimedOut), .. } => return timed_out(url),
        _ if error.is_timeout() => return timed_out(url),
        ErrorChain { not_http: true, .. } => {
            format!("{peer} does not speak HTTP: check the scheme (https or http) and port in Server.Url")
        }
        ErrorChain { innermost, .. } => {
            format!("request to {hop} failed ({innermost}): check {setting} and the network")
        }
    })
}

fn tls_failed(peer: &str, reason: &rustls::Error) -> String {
    use CertificateError as C;
    match reason {
        rustls::Error::InvalidCertificate(C::UnknownIssuer) => format!(
            "the certificate of {peer} was issued by an untrusted authority: \
             put that authority's certificate in a PEM file and set Server.CaFile to it"
        ),
        rustls::Error::InvalidCertificate(
            C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. },
        ) => format!(
            "the certificate of {peer} has expired or is not valid yet: \
             renew it on the server in Server.Url, or correct this machine's clock"
        ),
        rustls::Error::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => {
            format!("the certificate of {peer} is for another name: check the host in Server.Url")
        }
        rustls::Error::InvalidMessage(_) => {
            format!("{peer} does not speak TLS: check the scheme (https or http) and port in Server.Url")
        }
        _ => format!("TLS with {peer} failed ({reason}): check Server.Url and Server.CaFile"),
    }
}

/// What is known from the layers of an error.
#[derive(Debug, Default)]
struct ErrorChain {
    /// Why a proxy that was reached does not open a tunnel.
    tunnel: Option<String>,
    dns: bool,
    not_http: bool,
    tls: Option<rustls::Error>,
    io: Option<io::ErrorKind>,
    innermost: String,
}

impl ErrorChain {
    fn read(error: &(dyn Error + 'static)) -> Self {
        let mut chain = Self::default();
        let mut layer = Some(error);
        while let Some(error) = layer {
            let text = error.to_string();
            if text.starts_with("tunnel error") && !text.contains("failed to create underlying connection") {
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
