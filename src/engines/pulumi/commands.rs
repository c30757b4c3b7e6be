//! The commands of Pulumi.
//!
//! Every command gets the stack as an argument, and the backend in the environment ([`super::backend`]), from which
//! `pulumi login` reads it too. Parameters are set before the main command ([`super::config`]).
//!
//! `destroy --remove` removes the stack too, so there is nothing to export afterwards. With a preview, it would remove an empty
//! stack and fail with any other, so the flag is left out of a preview. With `--target` or `--exclude-protected`, the stack is
//! kept.

use hawser_contract::enums::WireEnum as _;
use hawser_contract::{EngineTask, FlagLists, PulumiArrayFlag, PulumiFlag};

use super::backend::{ChosenBackend, login_url};
use super::flags::{self, Clash, arguments};
use super::outputs::WITHOUT_SECRETS;
use crate::engines::flags::{is_on, value_of};
use crate::engines::{Direction, EngineCommands, EngineError, OIDC_TOKEN, ResultPaths, printed};
use crate::script::EngineCommand;
use crate::workspace::PrivateFile;

/// The flags that clash with the runner's arguments.
const NO_REMOVE: Clash = Clash::on(PulumiFlag::Remove, "it does not apply to PlanDestroy");
const NO_SKIP: Clash = Clash::on(PulumiFlag::SkipPreview, "this task is a preview");
const NO_SHELL: Clash = Clash::on(PulumiFlag::Shell, "the runner reads the outputs as JSON");
const JSON: Clash = Clash::off(PulumiFlag::Json, "the runner reads the result as JSON");

pub(super) fn command(words: &[&str], flags: impl IntoIterator<Item = String>) -> EngineCommand {
    let words = std::iter::once("pulumi").chain(words.iter().copied()).map(str::to_owned);
    EngineCommand::new(words.chain(flags))
}

/// The token for the login, which must not be an argument.
pub fn oidc_token(request: &EngineTask) -> Option<&str> {
    let token = value_of(&request.flags.pulumi_flags.known, PulumiFlag::OidcToken)?;
    (!token.starts_with("file://")).then_some(token)
}

/// Refuses a stack that Pulumi would read as an option, and a URL that cannot be one.
pub fn check_init(request: &EngineTask) -> Result<(), EngineError> {
    let ChosenBackend { backend, stack } = ChosenBackend::of_init(request);
    for (flag, value) in [(PulumiFlag::StackName, Some(stack)), (PulumiFlag::CloudUrl, backend)] {
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
            F::Color | F::Verbose | F::Emoji => global.extend(arguments(flag)),
            F::DefaultOrg | F::OidcExpiration | F::OidcOrg | F::OidcTeam | F::OidcUser => {
                login.extend(arguments(flag));
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
    if login_url(&request.flags).is_some() {
        work.engine
            .push(command(&["login"], login.into_iter().chain(global.clone())).known_as("pulumi login"));
    } else if !login.is_empty() {
        work.warnings
            .push("ignoring login flags: none of LoginCloud, LoginLocal and CloudUrl is set".to_owned());
    }
    let ChosenBackend { stack, .. } = ChosenBackend::of_init(request);
    let creates = value_of(given, F::CreateStack).is_none() || is_on(given, F::CreateStack);
    let create = creates.then(|| {
        let secrets = value_of(given, F::SecretsProvider);
        let secrets = secrets.into_iter().flat_map(|it| ["--secrets-provider", it]);
        std::iter::once("--create").chain(secrets).map(str::to_owned)
    });
    let words = create.into_iter().flatten().chain(["--non-interactive".to_owned()]).chain(global);
    work.engine.push(command(&["stack", "select", &stack], words));
    if !request.flags.pulumi_array_flags.known.is_empty() {
        work.warnings.push("ignoring Pulumi array flags: they do not apply to Init".to_owned());
    }
    work
}

/// A preview needs the parameters, which Validate does not get.
pub fn validate(stack: &str, config_file: Option<Option<&str>>) -> EngineCommands {
    let Some(config_file) = config_file else {
        let install = command(&["install", "--no-dependencies", "--non-interactive"], []);
        return EngineCommands {
            engine: vec![install.known_as("pulumi install")],
            notes: vec![
                "No preview, because no plan has set the parameters yet: checking only the project file, the language host \
                 and the plugins"
                    .to_owned(),
            ],
            ..EngineCommands::default()
        };
    };
    let file = config_file.into_iter().flat_map(|file| ["--config-file".to_owned(), file.to_owned()]);
    let preview = command(&["preview", "--stack", stack, "--non-interactive"], file);
    EngineCommands { engine: vec![preview], ..EngineCommands::default() }
}

pub fn plan(direction: Direction, stack: &str, flags: &FlagLists, places: &ResultPaths) -> EngineCommands {
    if direction == Direction::Destroy {
        let (arguments, warnings) = flags::of_task(flags, &[NO_REMOVE, NO_SKIP, JSON]);
        let words = ["destroy", "--preview-only", "--json", "--stack", stack, "--non-interactive"];
        // Resources that are kept are counted too.
        let arguments = arguments.into_iter().chain(["--show-sames".to_owned()]);
        let preview = printed(PrivateFile::DESTROY_PREVIEW, command(&words, arguments), places);
        return EngineCommands { warnings, ..preview };
    }
    let (arguments, warnings) = flags::of_task(flags, &[]);
    let plan = places.private(PrivateFile::PULUMI_PLAN);
    let words = ["preview", "--save-plan", &plan, "--stack", stack, "--non-interactive"];
    EngineCommands {
        engine: vec![command(&words, arguments)],
        collect: vec![places.collect(PrivateFile::PULUMI_PLAN)],
        writes: vec![plan],
        warnings,
        ..EngineCommands::default()
    }
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

pub fn apply(direction: Direction, stack: &str, flags: &FlagLists, places: &ResultPaths) -> EngineCommands {
    let (arguments, warnings) = flags::of_task(flags, &[]);
    let plan = places.private(PrivateFile::PULUMI_PLAN);
    let words: &[&str] = match direction {
        Direction::Apply => &["up", "--yes", "--plan", &plan, "--stack", stack, "--non-interactive"],
        Direction::Destroy => &["destroy", "--yes", "--stack", stack, "--non-interactive"],
    };
    let apply = command(words, arguments);
    let file = PrivateFile::PULUMI_EXPORT;
    let export = command(&["stack", "export", "--stack", stack], []);
    let export = export.stdout(places.step(file.name()).into());
    let removes = direction == Direction::Destroy && removes_stack(flags);
    let unless_removed = |it: EngineCommand| if removes { it.only_after_failure() } else { it };
    let collect = vec![unless_removed(export)];
    EngineCommands {
        engine: vec![apply],
        collect,
        publish: vec![unless_removed(places.publish(file))],
        collect_after_failure: true,
        writes: vec![places.private(file)],
        warnings,
        ..EngineCommands::default()
    }
}

pub fn output(stack: &str, flags: &FlagLists, places: &ResultPaths) -> EngineCommands {
    let (arguments, mut warnings) =
        flags::of_task(&without(flags, PulumiFlag::ShowSecrets), &[NO_SHELL, JSON]);
    if flags::config(flags).next().is_some() {
        warnings.push("ignoring Pulumi array flag Config: it does not apply to Output".to_owned());
    }
    let output = |more: Option<&str>| {
        let arguments = arguments.iter().cloned().chain(more.map(str::to_owned));
        command(&["stack", "output", "--json", "--stack", stack], arguments)
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
                (F::CreateStack, Some("false")),
                (F::Color, Some("never"))
            ])),
            ["pulumi login --color never", "pulumi stack select dev --non-interactive --color never"]
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
                "pulumi login --default-org acme --insecure --verbose 3",
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
    fn every_command_names_the_stack() {
        let flags = FlagLists::default();
        for direction in [Direction::Apply, Direction::Destroy] {
            let planned = plan(direction, "dev", &flags, &places());
            let applied = apply(direction, "dev", &flags, &places());
            let commands = planned.engine.iter().chain(&applied.engine).chain(&applied.collect);
            for command in commands {
                assert!(command.words.join(" ").contains("--stack dev"), "{command:?}");
            }
        }
        let printed = lines(&output("dev", &flags, &places()));
        assert!(printed.iter().all(|line| line.contains("--stack dev")), "{printed:?}");
        assert_eq!(
            lines(&validate("dev", Some(Some("a b.yaml")))),
            ["pulumi preview --stack dev --non-interactive --config-file a b.yaml"]
        );
    }
}
