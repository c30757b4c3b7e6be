//! The secrets in a request.

use hawser_contract::{EngineTask, FlagLists, PulumiArrayFlag, Task, TaskRequest, TerraformArrayFlag};

use super::SecretCollector;
use crate::engines::Engines;
use crate::script::Piece;

/// `name=value` of each variable that the flags set (`Var`, and `Config` of Pulumi).
pub(super) fn variables(flags: &FlagLists) -> impl Iterator<Item = (&str, &str)> {
    let terraform = flags.terraform_array_flags.known.iter();
    let terraform = terraform.filter(|it| it.flag == TerraformArrayFlag::Var).map(|it| &it.value);
    let pulumi = flags.pulumi_array_flags.known.iter();
    let pulumi = pulumi.filter(|it| it.flag == PulumiArrayFlag::Config).map(|it| &it.value);
    let pairs = terraform.chain(pulumi).flatten().filter_map(|value| value.split_once('='));
    pairs.map(|(name, value)| (name.trim(), value))
}

impl SecretCollector<'_> {
    /// Adds the secrets in a request. `lookup` returns the value of an environment variable.
    pub(super) fn request(
        &mut self,
        engines: &Engines,
        request: &TaskRequest,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) {
        let task = match request {
            TaskRequest::GetDefinitiveRevision(source) | TaskRequest::GetModule(source, _) => {
                return self.source(&source.source_url);
            }
            TaskRequest::Engine(task) => task,
        };
        for value in engines.iter().flat_map(|engine| engine.secret_flags(task)) {
            self.add(value);
        }
        if task.task == Task::Init {
            self.init(task, lookup);
        }
        for (name, value) in &task.resolved_parameters {
            if self.rules().is_secret_name(name) {
                self.hcl(value);
            }
            self.credentials_within(value);
        }
        let flags = &task.flags;
        let plain = flags.terraform_flags.known.iter().filter_map(|it| it.value.as_ref());
        let pulumi = flags.pulumi_flags.known.iter().filter_map(|it| it.value.as_ref());
        for value in plain.chain(pulumi) {
            self.credentials_in(value);
        }
        for (name, value) in variables(flags) {
            self.named(name, value);
        }
    }

    fn init(&mut self, task: &EngineTask, lookup: &dyn Fn(&str) -> Option<String>) {
        for (name, value) in backend(task) {
            let pieces = Piece::split(value);
            if pieces.iter().all(|piece| matches!(piece, Piece::Text(_))) {
                self.named(name, value);
                continue;
            }
            // The values of referenced variables are as secret as the setting.
            for piece in pieces {
                if let Piece::Variable(variable) = piece
                    && let Some(value) = lookup(&variable)
                {
                    self.named(name, &value);
                }
            }
        }
    }
}

/// Names and values of all backend settings, including overridden ones.
fn backend(task: &EngineTask) -> impl Iterator<Item = (&str, &str)> {
    let configuration = &task.init.backend_configuration;
    let lists = configuration.namespace_backend_configs.iter().chain(&configuration.module_backend_configs);
    let flags = task.flags.terraform_array_flags.known.iter();
    let flags = flags.filter(|it| it.flag == TerraformArrayFlag::BackendConfig);
    lists
        .map(|it| (it.name.as_str(), it.value.as_str()))
        .chain(flags.filter_map(|it| it.value.as_deref()?.split_once('=')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masking::Rules;
    use crate::settings::model::JobLogStreamSettings;
    use hawser_contract::{
        BackendConfig, BackendConfiguration, EngineName, Flag, PulumiFlag, Source, SourceRevisionType,
        SourceType,
    };

    fn found(request: &TaskRequest) -> Vec<String> {
        let rules = Rules::new(&JobLogStreamSettings::default()).unwrap();
        let mut found = SecretCollector::new(&rules);
        found.request(&Engines::default(), request, &|name| {
            (name == "PLAINLY_NAMED").then(|| "looked-up".to_owned())
        });
        found.into_secrets()
    }

    #[test]
    fn the_password_of_a_source_is_masked() {
        for (url, password) in [
            ("https://me:source-pw@host/r", "source-pw"),
            ("https://me:pa'ss \"w`rd<@host/r", "pa'ss \"w`rd<"),
            ("me:source-pw@host/r", "source-pw"),
        ] {
            let source = Source {
                source_type: SourceType::Git,
                source_revision_type: SourceRevisionType::Default,
                source_url: url.to_owned(),
                source_revision: String::new(),
                source_definitive_revision: None,
                source_semantic_version: None,
            };
            assert_eq!(found(&TaskRequest::GetDefinitiveRevision(source)), [password]);
        }
    }

    #[test]
    fn secret_backend_settings_and_referenced_variables_are_masked() {
        let config =
            |name: &str, value: &str| BackendConfig { name: name.to_owned(), value: value.to_owned() };
        let backend_configuration = BackendConfiguration {
            namespace_backend_configs: vec![
                config("access_key", "backend-key"),
                config("region", "eu-west-1"),
            ],
            module_backend_configs: vec![
                config("key", "path/terraform.tfstate"),
                config("password", "${PLAINLY_NAMED}"),
                config("conn_str", "postgres://me:conn-pw@db/x"),
            ],
            ..BackendConfiguration::default()
        };
        let sas_token = Flag::new(TerraformArrayFlag::BackendConfig, Some("sas_token=sas-value"));
        let mut task = EngineTask::new(Task::Init, EngineName::TOFU);
        task.init.backend_configuration = backend_configuration;
        task.flags.terraform_array_flags = vec![sas_token].into();
        task.flags.pulumi_flags = vec![Flag::new(PulumiFlag::OidcToken, Some("oidc-value"))].into();
        assert_eq!(
            found(&TaskRequest::Engine(task)),
            ["backend-key", "conn-pw", "looked-up", "oidc-value", "sas-value"]
        );
    }

    #[test]
    fn parameters_and_variables_with_secret_names_are_masked() {
        let parameters = [
            ("db_password", "\"param-pw\""),
            ("region", "\"eu-west-1\""),
            ("database", "[\"postgres://me:it's-pw@db\"]"),
        ];
        let mut task = EngineTask::new(Task::Plan, EngineName::TOFU);
        task.resolved_parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        task.flags = FlagLists {
            terraform_array_flags: vec![
                Flag::new(TerraformArrayFlag::Var, Some("api_token=flag-token")),
                Flag::new(TerraformArrayFlag::Target, Some("module.password")),
            ]
            .into(),
            pulumi_array_flags: vec![Flag::new(PulumiArrayFlag::Config, Some("app:token=config-token"))]
                .into(),
            ..FlagLists::default()
        };
        assert_eq!(found(&TaskRequest::Engine(task)), ["config-token", "flag-token", "it's-pw", "param-pw"]);
    }
}
