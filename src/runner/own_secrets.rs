//! The runner's own secrets: those of its settings and of the environment that it was started in.

use std::ffi::OsString;

use secrecy::ExposeSecret as _;

use crate::base::process::is_the_runners_own;
use crate::masking::{Rules, RulesError, SecretStore};
use crate::settings::Settings;
use crate::tasks::secrets::SecretCollector;

impl SecretStore {
    /// A secret store with the secrets of the settings and of this process's environment.
    pub fn of_this_process(settings: &Settings) -> Result<Self, RulesError> {
        let secret_store = Self::new(Rules::new(&settings.job_log_stream)?);
        secret_store.learn_own(settings, std::env::vars_os());
        Ok(secret_store)
    }

    /// Learns the runner's own secrets. (`JobLogStream.RedactValues` is part of the rules.)
    pub fn learn_own(&self, settings: &Settings, host: impl IntoIterator<Item = (OsString, OsString)>) {
        let mut found = SecretCollector::new(self.rules());
        found.add(settings.runner.credentials.client_secret.expose_secret());
        found.credentials_in(settings.server.url.as_str());
        for (name, value) in host {
            let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else { continue };
            // For settings, only the key counts: `Credentials` is the name of a section.
            let judged = match is_the_runners_own(name.as_ref()) {
                true => name.rsplit([':', '_']).next().unwrap_or_default(),
                false => &name,
            };
            found.named(judged, &value);
        }
        for secret in found.into_secrets() {
            self.learn(&secret);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_latest_of_many_replaced_tokens_are_known() {
        let secret_store = SecretStore::new(Rules::new(&Default::default()).unwrap());
        for number in 1000..1100 {
            secret_store.learn_passing(&format!("token-{number}"));
        }
        let job = secret_store.job(Some(uuid::Uuid::nil()));
        for masker in [secret_store.masker(), job.masker()] {
            assert_eq!(
                masker.text("token-1000 token-1087 token-1088 token-1099"),
                "token-1000 token-1087 *** ***"
            );
        }
    }

    #[test]
    fn the_runner_never_logs_its_own_secrets_or_those_of_its_environment() {
        let settings: Settings = serde_json::from_value(json!({
            "Runner": {
                "Id": uuid::Uuid::nil(), "OrganizationId": uuid::Uuid::nil(), "Instance": "test",
                "Credentials": {"ClientId": "client-id", "ClientSecret": "client-secret"},
            },
            "Server": {"Url": "https://me:url-secret@host/"},
            "WorkingDirectory": {"WorkingDirectory": "/w", "TempDirectory": "/t"},
            "JobLogStream": {"RedactValues": ["listed-value"]},
        }))
        .unwrap();
        let secret_store = SecretStore::new(Rules::new(&settings.job_log_stream).unwrap());
        let host = [
            ("HTTPS_PROXY", "http://u:proxy-pass@proxy:3128"),
            ("https_proxy", "http://u:lower-pass@proxy:3128"),
            ("VAULT_TOKEN", "vault-token"),
            ("Runner__Credentials__ClientId", "client-id"),
            ("Runner__Credentials__ClientSecret", "other-layer"),
            ("HOME", "/home/me"),
        ];
        secret_store.learn_own(&settings, host.map(|(name, value)| (name.into(), value.into())));
        let text = "client-id client-secret url-secret listed-value proxy-pass lower-pass vault-token other-layer /home/me";
        assert_eq!(secret_store.masker().text(text), "client-id *** *** *** *** *** *** *** /home/me");
    }
}
