//! The commands of Pulumi.
//!
//! Parameters are set by `pulumi config set KEY`, which reads the value from stdin, so that values are in no argument list.
//! `--plaintext` makes Pulumi accept values that look like secrets. Array flags `--config KEY=VALUE` are set in the same way
//! after the parameters, because Pulumi would save them as well. A login URL with credentials is passed in
//! `PULUMI_BACKEND_URL`, which `pulumi login` reads if it has no argument.
//!
//! `destroy --remove` removes the stack too, so there is nothing to export afterwards. With a preview, it would remove an empty
//! stack and fail with any other, so the flag is left out of a preview. With `--target` or `--exclude-protected`, the stack is
//! kept.

use std::collections::BTreeMap;

use hawser_contract::enums::WireEnum as _;
use hawser_contract::{EngineTask, FlagLists, PulumiArrayFlag, PulumiFlag};

use super::outputs::WITHOUT_SECRETS;
use crate::base::git_url::mask_url;
use crate::engines::flags::{self, is_on, pulumi_arguments, value_of};
use crate::engines::{Direction, EngineCommands, EngineError, OIDC_TOKEN, ResultPaths, hcl_values, printed};
use crate::script::EngineCommand;
use crate::workspace::PrivateFile;

/// Where `pulumi login` logs in without an argument.
pub(super) const BACKEND_URL: &str = "PULUMI_BACKEND_URL";

/// The stack of a module without the flag StackName.
pub(super) const DEFAULT_STACK: &str = "snapcd";

pub(super) fn command(words: &[&str], flags: impl IntoIterator<Item = String>) -> EngineCommand {
    let words = std::iter::once("pulumi").chain(words.iter().copied()).map(str::to_owned);
    EngineCommand::new(words.chain(flags))
}

/// The token for the login, which must not be an argument.
pub fn oidc_token(request: &EngineTask) -> Option<&str> {
    let token = value_of(&request.flags.pulumi_flags.known, PulumiFlag::OidcToken)?;
    (!token.starts_with("file://")).then_some(token)
}

/// Refuses positional arguments of Init that Pulumi would read as options.
pub fn check_init(request: &EngineTask) -> Result<(), EngineError> {
    for flag in [PulumiFlag::StackName, PulumiFlag::CloudUrl] {
        let value = value_of(&request.flags.pulumi_flags.known, flag);
        if let Some(value) = value.filter(|value| value.starts_with('-')) {
            let reason = format!("Pulumi would read its value {value:?} as an option");
            return Err(EngineError::Flag { flag: flag.name(), reason });
        }
    }
    Ok(())
}

pub fn init(request: &EngineTask, places: &ResultPaths) -> EngineCommands {
    use PulumiFlag as F;
    let given = &request.flags.pulumi_flags.known;
    let mut work = EngineCommands::default();
    let (mut login, mut global) = (Vec::new(), Vec::new());
    for flag in given {
        match flag.flag {
            F::Color | F::Verbose | F::Emoji => global.extend(pulumi_arguments(flag)),
            F::DefaultOrg | F::OidcExpiration | F::OidcOrg | F::OidcTeam | F::OidcUser => {
                login.extend(pulumi_arguments(flag));
            }
            F::OidcToken => {
                let file = match oidc_token(request) {
                    Some(_) => format!("file://{}", places.step(OIDC_TOKEN)),
                    None => flag.value.clone().unwrap_or_default(),
                };
                login.extend(["--oidc-token".to_owned(), file]);
            }
            F::Insecure if is_on(given, F::Insecure) => login.push("--insecure".to_owned()),
            F::CloudUrl | F::LoginLocal | F::LoginCloud | F::Insecure => {}
            F::StackName | F::SecretsProvider | F::CreateStack => {}
            other => work
                .warnings
                .push(format!("ignoring Pulumi flag {}: it does not apply to Init", other.name())),
        }
    }
    let target = if let Some(url) = value_of(given, F::CloudUrl) {
        Some(Some(url.to_owned()))
    } else if is_on(given, F::LoginLocal) {
        Some(Some("--local".to_owned()))
    } else {
        is_on(given, F::LoginCloud).then_some(None)
    };
    if let Some(target) = target {
        let (hidden, target): (Vec<_>, Vec<_>) = target.into_iter().partition(|url| mask_url(url) != *url);
        let words = target.into_iter().chain(login).chain(global.clone());
        let login = command(&["login"], words).known_as("pulumi login");
        work.engine.push(hidden.into_iter().fold(login, |login, url| login.variable(BACKEND_URL, url)));
    } else if !login.is_empty() {
        work.warnings
            .push("ignoring login flags: none of LoginCloud, LoginLocal and CloudUrl is set".to_owned());
    }
    let stack = value_of(given, F::StackName).unwrap_or(DEFAULT_STACK);
    let secrets = value_of(given, F::SecretsProvider);
    let secrets = secrets.into_iter().flat_map(|it| ["--secrets-provider".to_owned(), it.to_owned()]);
    let words = secrets.chain(["--non-interactive".to_owned()]).chain(global);
    work.engine.push(command(&["stack", "select", stack, "--create"], words));
    if !request.flags.pulumi_array_flags.known.is_empty() {
        work.warnings.push("ignoring Pulumi array flags: they do not apply to Init".to_owned());
    }
    work
}

pub fn validate() -> EngineCommands {
    EngineCommands {
        engine: vec![command(&["preview", "--non-interactive"], [])],
        ..EngineCommands::default()
    }
}

/// A flag with its value, under the name that it has in another command.
fn given(flags: &FlagLists, flag: PulumiFlag, name: &str) -> Vec<String> {
    let value = value_of(&flags.pulumi_flags.known, flag);
    value.into_iter().flat_map(|value| [name.to_owned(), value.to_owned()]).collect()
}

/// Sets a configuration value, which Pulumi reads from stdin.
fn set(flags: &FlagLists, name: &str) -> EngineCommand {
    // In the file that the preview reads.
    let place = [
        given(flags, PulumiFlag::StackName, "--stack"),
        given(flags, PulumiFlag::ConfigFile, "--config-file"),
    ];
    // After `--`, a name cannot be an option.
    let words = place.into_iter().flatten().chain(["--".to_owned(), name.to_owned()]);
    command(&["config", "set", "--plaintext", "--non-interactive"], words).known_as("pulumi config set")
}

/// Sets the configuration values of array flags.
fn set_all(flags: &FlagLists) -> impl Iterator<Item = EngineCommand> {
    flags::pulumi_config(flags).map(|(name, value)| set(flags, name).stdin(value))
}

pub fn plan(
    direction: Direction,
    parameters: &BTreeMap<String, String>,
    flags: &FlagLists,
    places: &ResultPaths,
) -> Result<EngineCommands, EngineError> {
    let kept = match direction {
        Direction::Apply => flags.clone(),
        Direction::Destroy => without(flags, PulumiFlag::Remove),
    };
    let (arguments, mut warnings) = flags::pulumi(&kept);
    if kept != *flags {
        warnings.push("ignoring Pulumi flag Remove: it does not apply to PlanDestroy".to_owned());
    }
    let mut engine = Vec::new();
    for (name, value) in parameters {
        engine.push(set(flags, name).stdin(hcl_values::pulumi_text(name, value)?));
    }
    engine.extend(set_all(flags));
    if direction == Direction::Destroy {
        // Resources that are kept are counted too.
        let arguments = arguments.into_iter().chain(["--show-sames".to_owned()]);
        let preview = command(&["destroy", "--preview-only", "--json", "--non-interactive"], arguments);
        let preview = printed(PrivateFile::DESTROY_PREVIEW, preview, places);
        engine.extend(preview.engine);
        return Ok(EngineCommands { engine, warnings, ..preview });
    }
    let plan = places.private(PrivateFile::PULUMI_PLAN);
    engine.push(command(&["preview", "--save-plan", &plan, "--non-interactive"], arguments));
    let collect = vec![places.collect(PrivateFile::PULUMI_PLAN)];
    Ok(EngineCommands { engine, collect, writes: vec![plan], warnings, ..EngineCommands::default() })
}

/// Whether a destroy with these flags removes the stack when it has succeeded.
pub fn removes_stack(flags: &FlagLists) -> bool {
    let on = |flag| is_on(&flags.pulumi_flags.known, flag);
    let some_only = flags.pulumi_array_flags.known.iter().any(|it| it.flag == PulumiArrayFlag::Target);
    on(PulumiFlag::Remove) && !on(PulumiFlag::ExcludeProtected) && !some_only
}

fn without(flags: &FlagLists, flag: PulumiFlag) -> FlagLists {
    let mut kept = flags.clone();
    kept.pulumi_flags.known.retain(|it| it.flag != flag);
    kept
}

/// Whether the server asks not to get secret outputs.
fn hides_secrets(flags: &FlagLists) -> bool {
    let (flags, flag) = (&flags.pulumi_flags.known, PulumiFlag::ShowSecrets);
    flags.iter().any(|it| it.flag == flag) && !is_on(flags, flag)
}

pub fn apply(direction: Direction, flags: &FlagLists, places: &ResultPaths) -> EngineCommands {
    let (arguments, warnings) = flags::pulumi(flags);
    let apply = match direction {
        Direction::Apply => command(
            &["up", "--yes", "--plan", &places.private(PrivateFile::PULUMI_PLAN), "--non-interactive"],
            arguments,
        ),
        Direction::Destroy => command(&["destroy", "--yes", "--non-interactive"], arguments),
    };
    let file = PrivateFile::PULUMI_EXPORT;
    let export = command(&["stack", "export"], given(flags, PulumiFlag::StackName, "--stack"))
        .stdout(places.step(file.name()).into());
    let removes = direction == Direction::Destroy && removes_stack(flags);
    let unless_removed = |it: EngineCommand| if removes { it.only_after_failure() } else { it };
    let collect = vec![unless_removed(export)];
    EngineCommands {
        engine: set_all(flags).chain([apply]).collect(),
        collect,
        publish: vec![unless_removed(places.publish(file))],
        collect_after_failure: true,
        writes: vec![places.private(file)],
        warnings,
        ..EngineCommands::default()
    }
}

pub fn output(flags: &FlagLists, places: &ResultPaths) -> EngineCommands {
    let (arguments, mut warnings) = flags::pulumi(&without(flags, PulumiFlag::ShowSecrets));
    if flags::pulumi_config(flags).next().is_some() {
        warnings.push("ignoring Pulumi array flag Config: it does not apply to Output".to_owned());
    }
    let output = |more: Option<&str>| {
        let arguments = arguments.iter().cloned().chain(more.map(str::to_owned));
        command(&["stack", "output", "--json"], arguments)
    };
    if hides_secrets(flags) {
        return EngineCommands { warnings, ..printed(PrivateFile::OUTPUT, output(None), places) };
    }
    let mut work = printed(PrivateFile::OUTPUT, output(Some("--show-secrets")), places);
    work.engine.push(output(None).stdout(places.step(WITHOUT_SECRETS).into()));
    EngineCommands { warnings, ..work }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_contract::{EngineName, Flag, Task};
    use std::path::Path;

    fn places() -> ResultPaths {
        ResultPaths::new(Path::new("/m/.snapcd"), Path::new("/step")).unwrap()
    }

    fn lines(work: &EngineCommands) -> Vec<String> {
        work.engine.iter().map(|command| command.words.join(" ")).collect()
    }

    fn init_with(flags: &[(PulumiFlag, Option<&str>)]) -> EngineCommands {
        let pulumi_flags =
            flags.iter().map(|(flag, value)| Flag::new(*flag, *value)).collect::<Vec<_>>().into();
        let flags = FlagLists { pulumi_flags, ..FlagLists::default() };
        init(&EngineTask { flags, ..EngineTask::new(Task::Init, EngineName::PULUMI) }, &places())
    }

    #[test]
    fn init_creates_the_stack_and_logs_in_only_if_requested() {
        use PulumiFlag as F;
        assert_eq!(lines(&init_with(&[])), ["pulumi stack select snapcd --create --non-interactive"]);
        assert_eq!(
            lines(&init_with(&[
                (F::LoginLocal, None),
                (F::StackName, Some("dev")),
                (F::Color, Some("never"))
            ])),
            [
                "pulumi login --local --color never",
                "pulumi stack select dev --create --non-interactive --color never"
            ]
        );
        assert_eq!(
            lines(&init_with(&[
                (F::CloudUrl, Some("s3://state")),
                (F::DefaultOrg, Some("acme")),
                (F::Insecure, None),
                (F::SecretsProvider, Some("passphrase")),
                (F::Verbose, Some("3")),
            ])),
            [
                "pulumi login s3://state --default-org acme --insecure --verbose 3",
                "pulumi stack select snapcd --create --secrets-provider passphrase --non-interactive --verbose 3"
            ]
        );
        assert_eq!(lines(&init_with(&[(F::LoginCloud, None)]))[0], "pulumi login");
        assert_eq!(lines(&init_with(&[(F::LoginLocal, Some("false"))])).len(), 1);
    }

    #[test]
    fn a_token_is_never_an_argument() {
        let work = init_with(&[(PulumiFlag::LoginCloud, None), (PulumiFlag::OidcToken, Some("hush"))]);
        assert_eq!(lines(&work)[0], "pulumi login --oidc-token file:///step/oidc-token");
    }

    #[test]
    fn flags_that_do_not_apply_to_init_cause_warnings() {
        let work = init_with(&[(PulumiFlag::Diff, None), (PulumiFlag::DefaultOrg, Some("acme"))]);
        assert_eq!(work.warnings.len(), 2, "{:?}", work.warnings);
    }

    #[test]
    fn parameters_are_set_through_stdin_before_the_preview() {
        let parameters =
            BTreeMap::from([("ns:a".to_owned(), "\"hush\"".to_owned()), ("b".to_owned(), "[1]".to_owned())]);
        let work = plan(Direction::Apply, &parameters, &FlagLists::default(), &places()).unwrap();
        assert_eq!(
            lines(&work),
            [
                "pulumi config set --plaintext --non-interactive -- b",
                "pulumi config set --plaintext --non-interactive -- ns:a",
                "pulumi preview --save-plan /m/.snapcd/plan.json --non-interactive"
            ]
        );
        assert_eq!(work.engine[1].stdin.as_deref(), Some("hush"));
        let work = plan(Direction::Destroy, &BTreeMap::new(), &FlagLists::default(), &places()).unwrap();
        assert_eq!(lines(&work), ["pulumi destroy --preview-only --json --non-interactive --show-sames"]);
    }

    #[test]
    fn parameters_and_export_use_the_stack_of_the_flags() {
        let pulumi_flags = vec![
            Flag::new(PulumiFlag::StackName, Some("dev")),
            Flag::new(PulumiFlag::ConfigFile, Some("a b.yaml")),
        ];
        let flags = FlagLists { pulumi_flags: pulumi_flags.into(), ..FlagLists::default() };
        let parameters = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        let work = plan(Direction::Apply, &parameters, &flags, &places()).unwrap();
        assert_eq!(
            lines(&work)[0],
            "pulumi config set --plaintext --non-interactive --stack dev --config-file a b.yaml -- a"
        );
        let work = apply(Direction::Apply, &flags, &places());
        assert_eq!(work.collect[0].words.join(" "), "pulumi stack export --stack dev");
        let work = apply(Direction::Destroy, &FlagLists::default(), &places());
        assert_eq!(work.collect[0].words.join(" "), "pulumi stack export");
    }
}
