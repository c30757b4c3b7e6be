//! What is said about a way to the server that others can listen in on, and which ways are not gone at all.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tracing::warn;
use url::Url;

use super::endpoint::Endpoint;
use super::http::{SetupError, is_this_machine};

/// Whether what goes to this URL can be read on the way: no TLS, and not on this machine.
fn is_open(url: &Url) -> bool {
    url.scheme() == "http" && !is_this_machine(url)
}

/// Refuses what the settings refuse, and warns of what they allow though it is dangerous. Called at every start.
pub(super) fn check_start(endpoint: &Endpoint) -> Result<(), SetupError> {
    let url = &endpoint.server_url;
    if is_open(url) {
        if endpoint.refuse_plain_http {
            return Err(SetupError::PlainHttp { url: without_login(url) });
        }
        warn!(
            "Server.Url {} is plain http to another machine: everybody on the way can read the runner's secret and send it \
             tasks. Use https, or set Server.RefusePlainHttp to make this an error",
            without_login(url)
        );
    }
    if endpoint.accept_any_certificate {
        warn!(
            "Server.DangerouslyAcceptAnyCertificate is on: whoever is on the way to the server can pose as it, read the \
             runner's secret and send it tasks. Name the server's authority in Server.CaFile and switch this off"
        );
    }
    Ok(())
}

/// Why a negotiate answer's redirect is not followed. The token would go that way.
pub(super) fn forbids_redirect(from: &Url, to: &Url, refuse_plain_http: bool) -> Option<&'static str> {
    if from.scheme() == "https" && to.scheme() == "http" {
        return Some("from https to plain http no token is sent");
    }
    if !is_open(to) {
        return None;
    }
    if refuse_plain_http {
        return Some("it is plain http, which Server.RefusePlainHttp refuses");
    }
    // The server's own URL was warned of at the start.
    if from.origin() != to.origin() {
        warn!("the server sends the connection on to {}, which is plain http", without_login(to));
    }
    None
}

fn without_login(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.to_string()
}

/// Takes any certificate for the server's, of whatever authority, name and date. That the server has the key to the
/// certificate that it shows is still checked, which protects against nobody but keeps the handshake whole.
#[derive(Debug)]
pub(super) struct AnyCertificate(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn only_this_machine_may_be_spoken_to_in_the_clear() {
        for here in [
            "http://localhost:1",
            "http://LOCALHOST",
            "http://localhost.",
            "http://hub.localhost",
            "http://127.0.0.1",
            "http://127.9.9.9",
            "http://[::1]:80",
            "http://[::ffff:127.0.0.1]",
            "https://example.com",
        ] {
            assert!(!is_open(&url(here)), "{here}");
        }
        for open in [
            "http://example.com",
            "http://0.0.0.0",
            "http://[::]",
            "http://10.0.0.1",
            "http://localhost.example.com",
            "http://notlocalhost",
        ] {
            assert!(is_open(&url(open)), "{open}");
        }
    }

    #[test]
    fn a_redirect_never_leads_a_token_from_https_to_http() {
        let forbids = |from, to, refuse| forbids_redirect(&url(from), &url(to), refuse).is_some();
        for refuse in [false, true] {
            assert!(forbids("https://a", "http://a", refuse));
            assert!(forbids("https://a", "http://localhost", refuse));
            assert!(!forbids("https://a", "https://b", refuse));
            assert!(!forbids("http://a", "https://b", refuse));
            assert!(!forbids("http://localhost", "http://127.0.0.1", refuse));
            assert_eq!(forbids("http://localhost", "http://b", refuse), refuse);
        }
    }
}
