//! Turns the flags of a request into arguments.
//!
//! Terraform and OpenTofu take `-flag` or `-flag=value` as one argument. Pulumi takes `--flag value` as two arguments, unless
//! the flag is a switch: Pulumi does not take the argument after a switch as its value, but as an option or the address of a
//! template, so the value of a switch is `--flag=value`. Values are passed on unchanged. The server only sends flags that
//! the task supports.

use hawser_contract::enums::WireEnum;
use hawser_contract::{Flag, FlagLists, PulumiArrayFlag, PulumiFlag, TerraformArrayFlag, TerraformFlag};

use super::EngineError;
use crate::base::git_url;
use crate::workspace::check_file_name;

/// `LockTimeout` becomes `lock-timeout`.
fn kebab(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for (index, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && index > 0 {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// One flag of terraform or tofu.
pub fn terraform_argument<T: WireEnum>(flag: &Flag<T>) -> String {
    let name = kebab(flag.flag.name());
    match &flag.value {
        Some(value) => format!("-{name}={value}"),
        None => format!("-{name}"),
    }
}

/// The flags of terraform or tofu for the command line, without the values of variables ([`terraform_variables`]).
pub fn terraform(flags: &FlagLists) -> Vec<String> {
    let plain = flags.terraform_flags.known.iter().map(terraform_argument);
    let array = flags.terraform_array_flags.known.iter();
    plain.chain(array.filter(|it| it.flag != TerraformArrayFlag::Var).map(terraform_argument)).collect()
}

/// The values of variables, in their order. They may be secret, and every user of the machine can read a command line.
pub fn terraform_variables(flags: &[Flag<TerraformArrayFlag>]) -> impl Iterator<Item = String> + '_ {
    flags.iter().filter(|it| it.flag == TerraformArrayFlag::Var).map(terraform_argument)
}

/// The flags of Pulumi that require a value. All others are switches, or their value is optional.
const PULUMI_WITH_VALUE: [&str; 22] = [
    "cloud-url",
    "default-org",
    "oidc-expiration",
    "oidc-org",
    "oidc-team",
    "oidc-token",
    "oidc-user",
    "stack-name",
    "secrets-provider",
    "config-file",
    "message",
    "parallel",
    "import-file",
    "color",
    "verbose",
    "policy-pack",
    "policy-pack-config",
    "target",
    "replace",
    "exclude",
    "target-replace",
    "config",
];

/// One flag of Pulumi.
pub fn pulumi_arguments<T: WireEnum>(flag: &Flag<T>) -> impl Iterator<Item = String> + use<T> {
    let name = kebab(flag.flag.name());
    let takes_value = PULUMI_WITH_VALUE.contains(&name.as_str());
    match flag.value.clone() {
        Some(value) if !takes_value => [Some(format!("--{name}={value}")), None],
        value => [Some(format!("--{name}")), value],
    }
    .into_iter()
    .flatten()
}

/// The flags of terraform and tofu that require a value. All others are switches.
const TERRAFORM_WITH_VALUE: [TerraformFlag; 8] = [
    TerraformFlag::FromModule,
    TerraformFlag::LockTimeout,
    TerraformFlag::Lockfile,
    TerraformFlag::Plugin,
    TerraformFlag::TestDirectory,
    TerraformFlag::Concurrency,
    TerraformFlag::Parallelism,
    TerraformFlag::GenerateConfigOut,
];

fn refuse<T>(flag: &'static str, reason: impl Into<String>) -> Result<T, EngineError> {
    Err(EngineError::Flag { flag, reason: reason.into() })
}

/// Refuses a flag without its required value: the engine would take the next argument as the value. Array flags always
/// require one.
fn check_values<T: WireEnum>(
    list: &[Flag<T>],
    takes_value: impl Fn(&Flag<T>) -> bool,
) -> Result<(), EngineError> {
    match list.iter().find(|it| it.value.is_none() && takes_value(it)) {
        Some(flag) => refuse(flag.flag.name(), "it requires a value, but has none (null)"),
        None => Ok(()),
    }
}

/// Refuses a file that the engine would write outside of the module.
fn check_written_file<T: Copy + PartialEq>(
    list: &[Flag<T>],
    flag: T,
    what: &'static str,
) -> Result<(), EngineError> {
    for file in list.iter().filter(|it| it.flag == flag).filter_map(|it| it.value.as_deref()) {
        check_file_name(what, file)?;
    }
    Ok(())
}

pub fn check_pulumi(flags: &FlagLists) -> Result<(), EngineError> {
    let plain = &flags.pulumi_flags.known;
    check_values(plain, |it| PULUMI_WITH_VALUE.contains(&kebab(it.flag.name()).as_str()))?;
    check_values(&flags.pulumi_array_flags.known, |_| true)?;
    check_written_file(plain, PulumiFlag::ImportFile, "value of the flag ImportFile")
}

pub fn check_terraform(flags: &FlagLists) -> Result<(), EngineError> {
    let plain = &flags.terraform_flags.known;
    check_values(plain, |it| TERRAFORM_WITH_VALUE.contains(&it.flag))?;
    check_values(&flags.terraform_array_flags.known, |_| true)?;
    check_written_file(plain, TerraformFlag::GenerateConfigOut, "value of the flag GenerateConfigOut")?;
    let mut from = plain.iter().filter(|it| it.flag == TerraformFlag::FromModule);
    match from.any(|it| it.value.as_deref().is_some_and(git_url::has_login)) {
        true => refuse(
            TerraformFlag::FromModule.name(),
            "its URL contains a user or password, which every user of the machine could read on the command line: \
             configure credentials for git on this host instead",
        ),
        false => Ok(()),
    }
}

/// A flag that a task puts on the command line of its engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GivenFlag {
    pub name: &'static str,
    /// Whether the engine could read the value as another flag.
    pub value_may_be_a_flag: bool,
    /// Whether it makes a task other than apply and destroy write to a state.
    pub changes_state: bool,
    /// Whether it makes the engine fetch a module.
    pub fetches_module: bool,
}

impl GivenFlag {
    pub fn new<T: WireEnum>(flag: &Flag<T>, value_is_an_argument: bool) -> Self {
        let dash = flag.value.as_deref().is_some_and(|value| value.starts_with('-'));
        Self { name: flag.flag.name(), value_may_be_a_flag: value_is_an_argument && dash, ..Self::default() }
    }
}

/// A switch that the runner sets itself or that contradicts its other arguments. It is left out.
#[derive(Debug, Clone, Copy)]
pub struct Clash {
    flag: PulumiFlag,
    /// The value that the user would miss. The other one is what happens anyway.
    missed: bool,
    why: &'static str,
}

impl Clash {
    /// A switch that must be off.
    pub const fn on(flag: PulumiFlag, why: &'static str) -> Self {
        Self { flag, missed: true, why }
    }

    /// A switch that must be on.
    pub const fn off(flag: PulumiFlag, why: &'static str) -> Self {
        Self { flag, missed: false, why }
    }
}

/// The flags of Pulumi for any task but Init, and warnings about those that are ignored: only Init logs in and creates a
/// stack, and some clash with the runner's arguments. Without the name of the stack, which every command gets, and without
/// configuration values ([`pulumi_config`]).
pub fn pulumi(flags: &FlagLists, clashes: &[Clash]) -> (Vec<String>, Vec<String>) {
    let (mut arguments, mut warnings) = (Vec::new(), Vec::new());
    let given = &flags.pulumi_flags.known;
    for flag in given.iter().filter(|it| it.flag != PulumiFlag::StackName) {
        let name = flag.flag.name();
        match clashes.iter().find(|it| it.flag == flag.flag) {
            Some(clash) if is_on(given, flag.flag) == clash.missed => {
                warnings.push(format!("ignoring Pulumi flag {name}: {}", clash.why));
            }
            Some(_) => {}
            None if is_for_init(flag.flag) => {
                warnings.push(format!("ignoring Pulumi flag {name}: it only applies to Init"));
            }
            None => arguments.extend(pulumi_arguments(flag)),
        }
    }
    for flag in &flags.pulumi_array_flags.known {
        match flag.flag {
            PulumiArrayFlag::Config => {}
            PulumiArrayFlag::AttachDebugger => {
                let why = "a job would wait for a debugger forever";
                warnings.push(format!("ignoring Pulumi array flag {}: {why}", flag.flag.name()));
            }
            _ => arguments.extend(pulumi_arguments(flag)),
        }
    }
    (arguments, warnings)
}

/// The configuration values of `--config name=value`, in their order.
pub fn pulumi_config(flags: &FlagLists) -> impl Iterator<Item = (&str, &str)> {
    let array = flags.pulumi_array_flags.known.iter().filter(|it| it.flag == PulumiArrayFlag::Config);
    array.filter_map(|it| it.value.as_deref()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Whether the flag is for logging in or for creating a stack.
fn is_for_init(flag: PulumiFlag) -> bool {
    use PulumiFlag as F;
    matches!(
        flag,
        F::CloudUrl
            | F::LoginLocal
            | F::LoginCloud
            | F::DefaultOrg
            | F::Insecure
            | F::OidcExpiration
            | F::OidcOrg
            | F::OidcTeam
            | F::OidcToken
            | F::OidcUser
            | F::StackName
            | F::SecretsProvider
            | F::CreateStack
    )
}

/// Whether a switch is given, and its value is not false.
pub fn is_on<T: Copy + PartialEq>(flags: &[Flag<T>], wanted: T) -> bool {
    flags.iter().rev().find(|it| it.flag == wanted).is_some_and(|it| {
        !it.value.as_deref().is_some_and(|value| matches!(value.trim(), "false" | "False" | "0" | "f" | "F"))
    })
}

/// The value of the last such flag that has one.
pub fn value_of<T: Copy + PartialEq>(flags: &[Flag<T>], wanted: T) -> Option<&str> {
    flags.iter().rev().filter(|it| it.flag == wanted).find_map(|it| it.value.as_deref())
}

/// A warning for each unknown flag.
pub fn unknown_flags(flags: &FlagLists) -> impl Iterator<Item = String> + '_ {
    flags.skipped().map(|name| format!("unknown flag skipped: {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Check = fn(&FlagLists) -> Result<(), EngineError>;

    /// Every name on the command line, written out: this is the contract, not a rule.
    const TERRAFORM: [&str; 21] = [
        "-force-copy",
        "-from-module",
        "-get-plugins",
        "-lock-timeout",
        "-lockfile",
        "-migrate-state",
        "-plugin",
        "-reconfigure",
        "-test-directory",
        "-upgrade",
        "-compact-warnings",
        "-concurrency",
        "-lock",
        "-no-color",
        "-parallelism",
        "-refresh",
        "-refresh-only",
        "-detailed-exitcode",
        "-generate-config-out",
        "-create-before-destroy",
        "-raw",
    ];
    const TERRAFORM_ARRAY: [&str; 5] = ["-target", "-replace", "-exclude", "-var", "-backend-config"];
    const PULUMI: [&str; 43] = [
        "--cloud-url",
        "--login-local",
        "--login-cloud",
        "--default-org",
        "--insecure",
        "--oidc-expiration",
        "--oidc-org",
        "--oidc-team",
        "--oidc-token",
        "--oidc-user",
        "--stack-name",
        "--secrets-provider",
        "--create-stack",
        "--config-file",
        "--debug",
        "--diff",
        "--expect-no-changes",
        "--json",
        "--message",
        "--parallel",
        "--refresh",
        "--run-program",
        "--show-config",
        "--show-full-output",
        "--show-reads",
        "--show-replacement-steps",
        "--show-sames",
        "--show-secrets",
        "--suppress-outputs",
        "--suppress-progress",
        "--target-dependents",
        "--exclude-dependents",
        "--neo",
        "--import-file",
        "--continue-on-error",
        "--skip-preview",
        "--strict",
        "--exclude-protected",
        "--remove",
        "--shell",
        "--color",
        "--verbose",
        "--emoji",
    ];
    /// Those that Pulumi's own help shows without a kind of value, or with one that may be left out.
    const PULUMI_SWITCHES: [&str; 28] = [
        "--login-local",
        "--login-cloud",
        "--insecure",
        "--create-stack",
        "--debug",
        "--diff",
        "--expect-no-changes",
        "--json",
        "--refresh",
        "--run-program",
        "--show-config",
        "--show-full-output",
        "--show-reads",
        "--show-replacement-steps",
        "--show-sames",
        "--show-secrets",
        "--suppress-outputs",
        "--suppress-progress",
        "--target-dependents",
        "--exclude-dependents",
        "--neo",
        "--continue-on-error",
        "--skip-preview",
        "--strict",
        "--exclude-protected",
        "--remove",
        "--shell",
        "--emoji",
    ];
    const PULUMI_ARRAY: [&str; 8] = [
        "--policy-pack",
        "--policy-pack-config",
        "--attach-debugger",
        "--target",
        "--replace",
        "--exclude",
        "--target-replace",
        "--config",
    ];

    #[test]
    fn terraform_flags_are_one_argument() {
        for (flag, name) in TerraformFlag::ALL.iter().zip(TERRAFORM) {
            assert_eq!(terraform_argument(&Flag::new(*flag, None)), name);
            assert_eq!(terraform_argument(&Flag::new(*flag, Some("a 'b' $C"))), format!("{name}=a 'b' $C"));
            assert_eq!(terraform_argument(&Flag::new(*flag, Some(""))), format!("{name}="));
        }
        for (flag, name) in TerraformArrayFlag::ALL.iter().zip(TERRAFORM_ARRAY) {
            assert_eq!(terraform_argument(&Flag::new(*flag, Some("a[\"b\"]"))), format!("{name}=a[\"b\"]"));
        }
    }

    #[test]
    fn pulumi_flags_with_values_are_two_arguments_and_switches_one() {
        for (flag, name) in PulumiFlag::ALL.iter().zip(PULUMI) {
            assert_eq!(pulumi_arguments(&Flag::new(*flag, None)).collect::<Vec<_>>(), [name]);
            let arguments: Vec<_> = pulumi_arguments(&Flag::new(*flag, Some("a 'b' $C"))).collect();
            let both = [name, "a 'b' $C"];
            let is_switch = PULUMI_SWITCHES.contains(&name);
            let expected = if is_switch { vec![both.join("=")] } else { both.map(str::to_owned).to_vec() };
            assert_eq!(arguments, expected);
        }
        for (flag, name) in PulumiArrayFlag::ALL.iter().zip(PULUMI_ARRAY) {
            let arguments: Vec<_> = pulumi_arguments(&Flag::new(*flag, Some("x"))).collect();
            match name {
                // Stands alone too, so that what follows it is not its value.
                "--attach-debugger" => assert_eq!(arguments, ["--attach-debugger=x"]),
                _ => assert_eq!(arguments, [name, "x"]),
            }
        }
    }

    #[test]
    fn a_flag_without_its_required_value_is_refused() {
        let check = |check: Check, lists: FlagLists| check(&lists).map_err(|error| error.to_string());
        let mut switches = Vec::new();
        for flag in TerraformFlag::ALL {
            let lists = |value| FlagLists {
                terraform_flags: vec![Flag::new(*flag, value)].into(),
                ..FlagLists::default()
            };
            check(check_terraform, lists(Some("x"))).unwrap();
            check(check_pulumi, lists(None)).unwrap();
            match check(check_terraform, lists(None)) {
                Ok(()) => switches.push(terraform_argument(&Flag::new(*flag, None))),
                Err(error) => assert!(error.contains(flag.name()), "{error}"),
            }
        }
        // Those whose value may be left out, by the help of terraform 1.11 and tofu.
        let known = [
            "-force-copy",
            "-get-plugins",
            "-migrate-state",
            "-reconfigure",
            "-upgrade",
            "-compact-warnings",
            "-lock",
            "-no-color",
            "-refresh",
            "-refresh-only",
            "-detailed-exitcode",
            "-create-before-destroy",
            "-raw",
        ];
        assert_eq!(switches, known);
        for (flag, name) in PulumiFlag::ALL.iter().zip(PULUMI) {
            let lists = |value| FlagLists {
                pulumi_flags: vec![Flag::new(*flag, value)].into(),
                ..FlagLists::default()
            };
            check(check_pulumi, lists(Some("x"))).unwrap();
            assert_eq!(check(check_pulumi, lists(None)).is_ok(), PULUMI_SWITCHES.contains(&name), "{name}");
        }
        for flag in TerraformArrayFlag::ALL {
            let terraform_array_flags = vec![Flag::new(*flag, None)].into();
            check(check_terraform, FlagLists { terraform_array_flags, ..FlagLists::default() }).unwrap_err();
        }
        for flag in PulumiArrayFlag::ALL {
            let pulumi_array_flags = vec![Flag::new(*flag, None)].into();
            check(check_pulumi, FlagLists { pulumi_array_flags, ..FlagLists::default() }).unwrap_err();
        }
    }

    #[test]
    fn array_flags_follow_plain_flags() {
        let flags = FlagLists {
            terraform_flags: vec![Flag::new(TerraformFlag::Lock, Some("false"))].into(),
            terraform_array_flags: vec![
                Flag::new(TerraformArrayFlag::Target, Some("a.b")),
                Flag::new(TerraformArrayFlag::Target, Some("c.d")),
            ]
            .into(),
            ..FlagLists::default()
        };
        assert_eq!(terraform(&flags), ["-lock=false", "-target=a.b", "-target=c.d"]);
    }

    #[test]
    fn pulumi_flags_of_init_are_left_out_of_other_tasks() {
        let flags = FlagLists {
            pulumi_flags: vec![
                Flag::new(PulumiFlag::StackName, Some("dev")),
                Flag::new(PulumiFlag::LoginLocal, None),
                Flag::new(PulumiFlag::Diff, None),
            ]
            .into(),
            ..FlagLists::default()
        };
        let (arguments, warnings) = pulumi(&flags, &[]);
        assert_eq!(arguments, ["--diff"]);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("LoginLocal"), "{warnings:?}");
    }

    #[test]
    fn a_switch_is_on_unless_its_last_value_is_false() {
        let flags = [Flag::new(TerraformFlag::Upgrade, None), Flag::new(TerraformFlag::Lock, Some("false"))];
        assert!(is_on(&flags, TerraformFlag::Upgrade));
        assert!(!is_on(&flags, TerraformFlag::Lock));
        assert!(!is_on(&flags, TerraformFlag::Raw));
    }
}
