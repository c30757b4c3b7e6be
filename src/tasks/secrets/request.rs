//! What a request says that must not be repeated.

use std::collections::BTreeMap;

use hawser_contract::requests::{BackendConfiguration, Init};
use hawser_contract::{Engine, FlagLists, PulumiArrayFlag, TaskRequest, TerraformArrayFlag};

use super::SecretCollector;
use crate::engines::pulumi;
use crate::script::Piece;

/// The engine, for tasks that work with one.
pub(super) fn engine(request: &TaskRequest) -> Option<Engine> {
    Some(match request {
        TaskRequest::GetDefinitiveRevision(_) | TaskRequest::GetModule(..) => return None,
        TaskRequest::Init(own) => own.engine,
        TaskRequest::Validate(own) => own.engine,
        TaskRequest::Variables(own) => own.engine,
        TaskRequest::Plan(own, _) => own.engine,
        TaskRequest::PlanDestroy(own, _) => own.engine,
        TaskRequest::ApplyFromPlan(own, _) => own.engine,
        TaskRequest::DestroyFromPlan(own, _) => own.engine,
        TaskRequest::Output(own, _) => own.engine,
    })
}

/// The parameters of a plan, encoded as HCL.
pub(super) fn parameters(request: &TaskRequest) -> Option<&BTreeMap<String, String>> {
    match request {
        TaskRequest::Plan(own, _) => Some(&own.resolved_parameters),
        TaskRequest::PlanDestroy(own, _) => Some(&own.resolved_parameters),
        _ => None,
    }
}

pub(super) fn flags(request: &TaskRequest) -> Option<FlagLists> {
    match request {
        TaskRequest::Init(own) => Some(own.backend_configuration.flag_lists()),
        TaskRequest::Plan(_, flags)
        | TaskRequest::PlanDestroy(_, flags)
        | TaskRequest::ApplyFromPlan(_, flags)
        | TaskRequest::DestroyFromPlan(_, flags)
        | TaskRequest::Output(_, flags) => Some(flags.clone()),
        _ => None,
    }
}

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
    /// What the request gives away by itself. `lookup` says what an environment variable holds.
    pub(super) fn request(&mut self, request: &TaskRequest, lookup: &dyn Fn(&str) -> Option<String>) {
        match request {
            TaskRequest::GetDefinitiveRevision(source) | TaskRequest::GetModule(source, _) => {
                self.source(&source.source_url);
            }
            TaskRequest::Init(own) => self.init(own, lookup),
            _ => {}
        }
        for (name, value) in parameters(request).into_iter().flatten() {
            if self.rules().is_secret_name(name) {
                self.hcl(value);
            }
            self.credentials_within(value);
        }
        let Some(flags) = flags(request) else { return };
        let plain = flags.terraform_flags.known.iter().filter_map(|it| it.value.as_ref());
        let pulumi = flags.pulumi_flags.known.iter().filter_map(|it| it.value.as_ref());
        for value in plain.chain(pulumi) {
            self.credentials_in(value);
        }
        for (name, value) in variables(&flags) {
            self.named(name, value);
        }
    }

    fn init(&mut self, own: &Init, lookup: &dyn Fn(&str) -> Option<String>) {
        if let Some(token) = pulumi::oidc_token(own) {
            self.add(token);
        }
        for (name, value) in backend(&own.backend_configuration) {
            let pieces = Piece::split(value);
            if pieces.iter().all(|piece| matches!(piece, Piece::Text(_))) {
                self.named(name, value);
                continue;
            }
            // What the references stand for is as secret as the setting that they are for.
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

/// Names and values of all backend settings, those that are overruled too.
fn backend(configuration: &BackendConfiguration) -> impl Iterator<Item = (&str, &str)> {
    let lists = configuration.namespace_backend_configs.iter().chain(&configuration.module_backend_configs);
    let flags = configuration.terraform_array_flags.known.iter();
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
    use hawser_contract::requests::{BackendConfig, Plan};
    use hawser_contract::{Flag, PulumiFlag, Source, SourceRevisionType, SourceType};

    fn found(request: &TaskRequest) -> Vec<String> {
        let rules = Rules::new(&JobLogStreamSettings::default()).unwrap();
        let mut found = SecretCollector::new(&rules);
        found.request(request, &|name| (name == "PLAINLY_NAMED").then(|| "looked-up".to_owned()));
        found.into_secrets()
    }

    #[test]
    fn the_password_of_a_source_is_known() {
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
    fn backend_settings_with_secret_names_are_known_and_so_is_what_they_refer_to() {
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
            terraform_array_flags: vec![Flag::new(
                TerraformArrayFlag::BackendConfig,
                Some("sas_token=sas-value"),
            )]
            .into(),
            pulumi_flags: vec![Flag::new(PulumiFlag::OidcToken, Some("oidc-value"))].into(),
            ..BackendConfiguration::default()
        };
        assert_eq!(
            found(&TaskRequest::Init(Init { backend_configuration, ..Init::default() })),
            ["backend-key", "conn-pw", "looked-up", "oidc-value", "sas-value"]
        );
    }

    #[test]
    fn parameters_and_variables_with_secret_names_are_known() {
        let parameters = [
            ("db_password", "\"param-pw\""),
            ("region", "\"eu-west-1\""),
            ("database", "[\"postgres://me:it's-pw@db\"]"),
        ];
        let own = Plan {
            resolved_parameters: parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..Plan::default()
        };
        let flags = FlagLists {
            terraform_array_flags: vec![
                Flag::new(TerraformArrayFlag::Var, Some("api_token=flag-token")),
                Flag::new(TerraformArrayFlag::Target, Some("module.password")),
            ]
            .into(),
            pulumi_array_flags: vec![Flag::new(PulumiArrayFlag::Config, Some("app:token=config-token"))]
                .into(),
            ..FlagLists::default()
        };
        assert_eq!(
            found(&TaskRequest::Plan(own, flags)),
            ["config-token", "flag-token", "it's-pw", "param-pw"]
        );
    }
}
