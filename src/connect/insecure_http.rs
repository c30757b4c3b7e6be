//! Warns about insecure connections to the server, or refuses them, depending on the settings.

use tracing::warn;
use url::Url;

use super::endpoint::Endpoint;
use super::http::{SetupError, is_this_machine};

/// Whether requests to this URL cross the network in plain text.
fn is_exposed(url: &Url) -> bool {
    url.scheme() == "http" && !is_this_machine(url)
}

/// Refuses or warns about dangerous settings. Called at every start.
pub(super) fn check_start(endpoint: &Endpoint) -> Result<(), SetupError> {
    let url = &endpoint.server_url;
    if is_exposed(url) {
        if endpoint.refuse_plain_http {
            return Err(SetupError::PlainHttp { url: without_login(url) });
        }
        warn!(
            url = without_login(url),
            "Server.Url is plain http to another machine: anyone on the network path can read the runner's secret and \
             send it tasks. Use https, or set Server.RefusePlainHttp to make this an error"
        );
    }
    if endpoint.accept_any_certificate {
        warn!(
            "Server.DangerouslyAcceptAnyCertificate is on: anyone on the network path can impersonate the server, read the \
             runner's secret and send it tasks. Set Server.CaFile to the server's certificate authority and turn this off"
        );
    }
    Ok(())
}

/// Checks the target of a redirect in a negotiate response. The token would be sent there.
pub(super) fn check_redirect(from: &Url, to: &Url, refuse_plain_http: bool) -> Result<(), String> {
    if from.scheme() == "https" && to.scheme() == "http" {
        return Err("the token is not sent from https to plain http".to_owned());
    }
    if is_exposed(to) {
        if refuse_plain_http {
            return Err("plain http is forbidden by Server.RefusePlainHttp".to_owned());
        }
        // The server's own URL was reported at the start.
        if from.origin() != to.origin() {
            warn!(url = without_login(to), "server redirects to plain http");
        }
    }
    Ok(())
}

fn without_login(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn only_plain_http_to_another_machine_is_insecure() {
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
            assert!(!is_exposed(&url(here)), "{here}");
        }
        for open in [
            "http://example.com",
            "http://0.0.0.0",
            "http://[::]",
            "http://10.0.0.1",
            "http://localhost.example.com",
            "http://notlocalhost",
        ] {
            assert!(is_exposed(&url(open)), "{open}");
        }
    }

    #[test]
    fn a_token_is_never_redirected_from_https_to_http() {
        let forbids = |from, to, refuse| check_redirect(&url(from), &url(to), refuse).is_err();
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
