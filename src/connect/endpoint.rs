//! The address of the server, the runner's identity, and timeouts.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::SecretString;
use url::Url;
use uuid::Uuid;

use crate::settings::Settings;

/// Escapes the same characters as .NET's `Uri.EscapeDataString`.
const QUERY_VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The server, and the runner's identity and credentials.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `Server.Url`. May have a path prefix, with or without a trailing slash.
    pub server_url: Url,
    pub organization_id: Uuid,
    pub runner_id: Uuid,
    pub instance: String,
    /// Without the organization prefix.
    pub client_id: String,
    pub client_secret: SecretString,
    /// Authorities to trust in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The largest message that the server accepts.
    pub max_message_bytes: usize,
    /// Makes plain http to another machine an error instead of a warning.
    pub refuse_plain_http: bool,
    /// Disables the check of the server's certificate.
    pub accept_any_certificate: bool,
}

impl From<&Settings> for Endpoint {
    fn from(settings: &Settings) -> Self {
        Self {
            server_url: settings.server.url.clone(),
            organization_id: settings.runner.organization_id,
            runner_id: settings.runner.id,
            instance: settings.runner.instance.clone(),
            client_id: settings.runner.credentials.client_id.clone(),
            client_secret: settings.runner.credentials.client_secret.clone(),
            ca_file: settings.server.ca_file.clone(),
            max_message_bytes: settings.server.max_message_bytes,
            refuse_plain_http: settings.server.refuse_plain_http,
            accept_any_certificate: settings.server.dangerously_accept_any_certificate,
        }
    }
}

impl Endpoint {
    pub(super) fn token_url(&self) -> Url {
        self.below_server(&["connect", "token"])
    }

    /// The client ID as the token endpoint expects it.
    pub(super) fn full_client_id(&self) -> String {
        format!("{}:{}", self.organization_id.hyphenated(), self.client_id)
    }

    pub(super) fn hub_url(&self) -> Url {
        let mut url = self.below_server(&["runnerhub"]);
        url.set_query(Some(&format!(
            "organization_id={}&runner_id={}&runner_instance={}",
            self.organization_id.hyphenated(),
            self.runner_id.hyphenated(),
            utf8_percent_encode(&self.instance, QUERY_VALUE),
        )));
        url
    }

    fn below_server(&self, segments: &[&str]) -> Url {
        let mut url = self.server_url.clone();
        url.set_query(None);
        url.set_fragment(None);
        // A user name in the URL would become a second Authorization header. The setters cannot fail on an http URL
        // with a host, and `http::hub_client` checks for one.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }
}

/// All timeouts and delays of the connection. The defaults are those of the contract; tests use shorter ones.
#[derive(Debug, Clone)]
pub struct Timing {
    pub session: hawser_signalr::Timing,
    /// The time limit of each HTTP request (token, negotiate, upgrade).
    pub request_timeout: Duration,
    /// The shortest time between two renewals of the token, regardless of its lifetime.
    pub token_renewal_floor: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            session: hawser_signalr::Timing::default(),
            request_timeout: Duration::from_secs(30),
            token_renewal_floor: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str, instance: &str) -> Endpoint {
        Endpoint {
            server_url: url.parse().unwrap(),
            organization_id: "6F9619FF-8B86-D011-B42D-00C04FC964FF".parse().unwrap(),
            runner_id: "00000000-0000-0000-0000-0000000000AB".parse().unwrap(),
            instance: instance.to_owned(),
            client_id: "me".to_owned(),
            client_secret: "hush".into(),
            ca_file: None,
            max_message_bytes: 32 * 1024,
            refuse_plain_http: false,
            accept_any_certificate: false,
        }
    }

    #[test]
    fn a_path_prefix_is_kept_and_a_trailing_slash_is_ignored() {
        for (server, token) in [
            ("https://h", "https://h/connect/token"),
            ("https://h/", "https://h/connect/token"),
            ("https://h:8443/a/b", "https://h:8443/a/b/connect/token"),
            ("https://h/a/b/?x=1#y", "https://h/a/b/connect/token"),
            ("https://user:pw@h/a/", "https://h/a/connect/token"),
        ] {
            assert_eq!(endpoint(server, "i").token_url().as_str(), token);
        }
    }

    #[test]
    fn the_instance_name_is_percent_encoded_and_the_ids_are_lowercase() {
        let url = endpoint("http://h/p/", "büro 1&x=+%").hub_url();
        assert_eq!(
            url.as_str(),
            "http://h/p/runnerhub?organization_id=6f9619ff-8b86-d011-b42d-00c04fc964ff\
             &runner_id=00000000-0000-0000-0000-0000000000ab&runner_instance=b%C3%BCro%201%26x%3D%2B%25"
        );
    }

    #[test]
    fn the_client_id_is_prefixed_with_the_organization() {
        assert_eq!(endpoint("http://h", "i").full_client_id(), "6f9619ff-8b86-d011-b42d-00c04fc964ff:me");
    }

    #[test]
    fn debug_output_of_the_endpoint_does_not_contain_the_secret() {
        assert!(!format!("{:?}", endpoint("http://h", "i")).contains("hush"));
    }
}
