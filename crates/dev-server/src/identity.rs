//! The hub's runner record, and the settings with which its runner connects.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use uuid::Uuid;

/// How often a runner sends logs while a user watches the job.
pub const LOG_PERIOD_SECONDS: u64 = 1;

/// The organization, the runner record and the credentials that the hub accepts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub organization_id: Uuid,
    pub runner_id: Uuid,
    pub client_id: String,
    #[serde(serialize_with = "expose")]
    pub client_secret: SecretString,
}

fn expose<S: Serializer>(secret: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose_secret())
}

impl Identity {
    pub fn generate() -> Self {
        Self {
            organization_id: Uuid::new_v4(),
            runner_id: Uuid::new_v4(),
            client_id: Uuid::new_v4().to_string(),
            client_secret: random_secret().into(),
        }
    }

    /// The `client_id` of a token request.
    pub(super) fn full_client_id(&self) -> String {
        format!("{}:{}", self.organization_id, self.client_id)
    }

    /// The settings with which a runner connects, in the format of `appsettings.json`.
    pub fn runner_settings(&self, url: &str, instance: &str) -> Value {
        json!({
            "Runner": {
                "Id": self.runner_id,
                "OrganizationId": self.organization_id,
                "Instance": instance,
                "Credentials": {
                    "ClientId": self.client_id,
                    "ClientSecret": self.client_secret.expose_secret(),
                },
            },
            "Server": { "Url": url },
            // A user watches the job. The default suits many jobs that run unattended.
            "JobLogStream": { "PeriodSeconds": LOG_PERIOD_SECONDS },
        })
    }

    /// The settings with which a runner connects, as environment variables.
    pub fn runner_variables(&self, url: &str, instance: &str) -> Vec<(&'static str, String)> {
        vec![
            ("Runner__Id", self.runner_id.to_string()),
            ("Runner__OrganizationId", self.organization_id.to_string()),
            ("Runner__Instance", instance.to_owned()),
            ("Runner__Credentials__ClientId", self.client_id.clone()),
            ("Runner__Credentials__ClientSecret", self.client_secret.expose_secret().to_owned()),
            ("Server__Url", url.to_owned()),
        ]
    }
}

/// 244 random bits.
pub(super) fn random_secret() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}
