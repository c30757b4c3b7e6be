//! Turns the flags of a request into arguments.
//!
//! Pulumi takes `--flag value` as two arguments, unless the flag is a switch: Pulumi does not take the argument after a switch as
//! its value, but as an option or the address of a template, so the value of a switch is `--flag=value`.

use hawser_contract::enums::WireEnum;
use hawser_contract::{Flag, FlagLists, PulumiArrayFlag, PulumiFlag};

use crate::engines::EngineError;
use crate::engines::flags::{check_values, check_written_file, is_on, kebab};

/// The flags of Pulumi that require a value. All others are switches, or their value is optional.
const WITH_VALUE: [&str; 22] = [
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
pub fn arguments<T: WireEnum>(flag: &Flag<T>) -> impl Iterator<Item = String> + use<T> {
    let name = kebab(flag.flag.name());
    let takes_value = WITH_VALUE.contains(&name.as_str());
    match flag.value.clone() {
        Some(value) if !takes_value => [Some(format!("--{name}={value}")), None],
        value => [Some(format!("--{name}")), value],
    }
    .into_iter()
    .flatten()
}

pub fn check(flags: &FlagLists) -> Result<(), EngineError> {
    let plain = &flags.pulumi_flags.known;
    check_values(plain, |it| WITH_VALUE.contains(&kebab(it.flag.name()).as_str()))?;
    check_values(&flags.pulumi_array_flags.known, |_| true)?;
    check_written_file(plain, PulumiFlag::ImportFile, "value of the flag ImportFile")
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
/// configuration values ([`config`]).
pub fn of_task(flags: &FlagLists, clashes: &[Clash]) -> (Vec<String>, Vec<String>) {
    let (mut words, mut warnings) = (Vec::new(), Vec::new());
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
            None => words.extend(arguments(flag)),
        }
    }
    for flag in &flags.pulumi_array_flags.known {
        match flag.flag {
            PulumiArrayFlag::Config => {}
            PulumiArrayFlag::AttachDebugger => {
                let why = "a job would wait for a debugger forever";
                warnings.push(format!("ignoring Pulumi array flag {}: {why}", flag.flag.name()));
            }
            _ => words.extend(arguments(flag)),
        }
    }
    (words, warnings)
}

/// The configuration values of `--config name=value`, in their order.
pub fn config(flags: &FlagLists) -> impl Iterator<Item = (&str, &str)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name on the command line, written out: this is the contract, not a rule.
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
    fn pulumi_flags_with_values_are_two_arguments_and_switches_one() {
        for (flag, name) in PulumiFlag::ALL.iter().zip(PULUMI) {
            assert_eq!(arguments(&Flag::new(*flag, None)).collect::<Vec<_>>(), [name]);
            let words: Vec<_> = arguments(&Flag::new(*flag, Some("a 'b' $C"))).collect();
            let both = [name, "a 'b' $C"];
            let is_switch = PULUMI_SWITCHES.contains(&name);
            let expected = if is_switch { vec![both.join("=")] } else { both.map(str::to_owned).to_vec() };
            assert_eq!(words, expected);
        }
        for (flag, name) in PulumiArrayFlag::ALL.iter().zip(PULUMI_ARRAY) {
            let words: Vec<_> = arguments(&Flag::new(*flag, Some("x"))).collect();
            match name {
                // Stands alone too, so that what follows it is not its value.
                "--attach-debugger" => assert_eq!(words, ["--attach-debugger=x"]),
                _ => assert_eq!(words, [name, "x"]),
            }
        }
    }

    #[test]
    fn a_flag_without_its_required_value_is_refused() {
        for (flag, name) in PulumiFlag::ALL.iter().zip(PULUMI) {
            let lists = |value| FlagLists {
                pulumi_flags: vec![Flag::new(*flag, value)].into(),
                ..FlagLists::default()
            };
            check(&lists(Some("x"))).unwrap();
            assert_eq!(check(&lists(None)).is_ok(), PULUMI_SWITCHES.contains(&name), "{name}");
        }
        for flag in PulumiArrayFlag::ALL {
            let pulumi_array_flags = vec![Flag::new(*flag, None)].into();
            check(&FlagLists { pulumi_array_flags, ..FlagLists::default() }).unwrap_err();
        }
    }

    #[test]
    fn flags_of_init_are_left_out_of_other_tasks() {
        let flags = FlagLists {
            pulumi_flags: vec![
                Flag::new(PulumiFlag::StackName, Some("dev")),
                Flag::new(PulumiFlag::LoginLocal, None),
                Flag::new(PulumiFlag::Diff, None),
            ]
            .into(),
            ..FlagLists::default()
        };
        let (words, warnings) = of_task(&flags, &[]);
        assert_eq!(words, ["--diff"]);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("LoginLocal"), "{warnings:?}");
    }
}
