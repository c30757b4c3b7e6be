//! Turns the flags of a request into arguments.
//!
//! Terraform and OpenTofu take `-flag` or `-flag=value` as one argument; [`super::pulumi::flags`] is about Pulumi. Values are
//! passed on unchanged. The server only sends flags that the task supports.

use hawser_contract::enums::WireEnum;
use hawser_contract::{Flag, FlagLists, TerraformArrayFlag, TerraformFlag};

use super::EngineError;
use crate::base::git_url;
use crate::workspace::check_file_name;

/// `LockTimeout` becomes `lock-timeout`.
pub(super) fn kebab(name: &str) -> String {
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
pub(super) fn check_values<T: WireEnum>(
    list: &[Flag<T>],
    takes_value: impl Fn(&Flag<T>) -> bool,
) -> Result<(), EngineError> {
    match list.iter().find(|it| it.value.is_none() && takes_value(it)) {
        Some(flag) => refuse(flag.flag.name(), "it requires a value, but has none (null)"),
        None => Ok(()),
    }
}

/// Refuses a file that the engine would write outside of the module.
pub(super) fn check_written_file<T: Copy + PartialEq>(
    list: &[Flag<T>],
    flag: T,
    what: &'static str,
) -> Result<(), EngineError> {
    for file in list.iter().filter(|it| it.flag == flag).filter_map(|it| it.value.as_deref()) {
        check_file_name(what, file)?;
    }
    Ok(())
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
    fn a_flag_without_its_required_value_is_refused() {
        let check = |lists: FlagLists| check_terraform(&lists).map_err(|error| error.to_string());
        let mut switches = Vec::new();
        for flag in TerraformFlag::ALL {
            let lists = |value| FlagLists {
                terraform_flags: vec![Flag::new(*flag, value)].into(),
                ..FlagLists::default()
            };
            check(lists(Some("x"))).unwrap();
            match check(lists(None)) {
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
        for flag in TerraformArrayFlag::ALL {
            let terraform_array_flags = vec![Flag::new(*flag, None)].into();
            check(FlagLists { terraform_array_flags, ..FlagLists::default() }).unwrap_err();
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
    fn a_switch_is_on_unless_its_last_value_is_false() {
        let flags = [Flag::new(TerraformFlag::Upgrade, None), Flag::new(TerraformFlag::Lock, Some("false"))];
        assert!(is_on(&flags, TerraformFlag::Upgrade));
        assert!(!is_on(&flags, TerraformFlag::Lock));
        assert!(!is_on(&flags, TerraformFlag::Raw));
    }
}
