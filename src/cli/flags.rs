//! `--flag TASK:NAME[=VALUE]`: flags for the engine, as a server sends them.

use hawser_contract::enums::WireEnum;
use hawser_contract::{
    CommandTask, EngineName, Flag, FlagList, FlagLists, PulumiArrayFlag, PulumiFlag, TerraformArrayFlag,
    TerraformFlag,
};

use super::Failure;
use crate::local::area;

/// How alike a name has to be to be suggested.
const ALIKE: f64 = 0.8;

/// Options shared by `hawser local` and `hawser job`.
#[derive(Debug, clap::Args)]
pub(super) struct FlagOptions {
    /// Flag for the engine, such as `Plan:Target=ADDRESS`, `Init:upgrade`, or `Init:CloudUrl=file:///DIR` for Pulumi. TASK is
    /// Init, Plan, Apply, Destroy, or Output; NAME is that of the engine's option
    #[arg(long = "flag", value_name = "TASK:NAME[=VALUE]", value_parser = parse)]
    flags: Vec<FlagOption>,
}

#[derive(Debug, Clone)]
struct FlagOption {
    task: CommandTask,
    name: String,
    value: Option<String>,
}

fn parse(text: &str) -> Result<FlagOption, String> {
    let (flag, value) = match text.split_once('=') {
        Some((flag, value)) => (flag, Some(value.to_owned())),
        None => (text, None),
    };
    let (task, name) = flag.split_once(':').ok_or("expected TASK:NAME or TASK:NAME=VALUE")?;
    let task = named(task).ok_or_else(|| {
        let tasks: Vec<&str> = CommandTask::ALL.iter().map(|task| task.name()).collect();
        format!("unknown task {task:?}: expected one of {}", tasks.join(", "))
    })?;
    Ok(FlagOption { task, name: name.to_owned(), value })
}

impl FlagOptions {
    /// The flags together with `stack`, the flags that select a stack. The name decides whether a flag may be repeated.
    pub(super) fn lists(self, engine: &EngineName, stack: FlagLists) -> Result<FlagLists, Failure> {
        let mut lists = stack;
        for option in self.flags {
            let mut found = FlagLists::default();
            let needs_value = option.add_to(&mut found);
            if found == FlagLists::default() || !area::knows_flags(engine, &found) {
                return Err(unknown(engine, &option.name));
            }
            if needs_value && option.value.is_none() {
                let FlagOption { task, name, .. } = &option;
                return Err(Failure::usage(format!("the flag {name} needs a value"))
                    .hint(format!("pass --flag {}:{name}=VALUE", task.name())));
            }
            option.add_to(&mut lists);
        }
        Ok(lists)
    }
}

impl FlagOption {
    /// Adds the flag to each list that has its name. An engine ignores the lists of another. Returns whether it needs a value.
    fn add_to(&self, lists: &mut FlagLists) -> bool {
        self.add(&mut lists.terraform_flags);
        self.add(&mut lists.pulumi_flags);
        let is_array = [self.add(&mut lists.terraform_array_flags), self.add(&mut lists.pulumi_array_flags)];
        is_array.contains(&true)
    }

    fn add<T: WireEnum>(&self, list: &mut FlagList<T>) -> bool {
        let Some(flag) = named(&self.name) else { return false };
        list.known.push(Flag { task: Some(self.task), flag, value: self.value.clone() });
        true
    }
}

/// Finds a name in any case, with or without dashes.
fn named<T: WireEnum>(text: &str) -> Option<T> {
    let name = text.replace('-', "");
    T::ALL.iter().copied().find(|it| it.name().eq_ignore_ascii_case(&name))
}

fn unknown(engine: &EngineName, name: &str) -> Failure {
    let mut names: Vec<&str> = Vec::new();
    names.extend(TerraformFlag::ALL.iter().map(|flag| flag.name()));
    names.extend(TerraformArrayFlag::ALL.iter().map(|flag| flag.name()));
    names.extend(PulumiFlag::ALL.iter().map(|flag| flag.name()));
    names.extend(PulumiArrayFlag::ALL.iter().map(|flag| flag.name()));
    let has = |known: &&&str| {
        let mut lists = FlagLists::default();
        FlagOption { task: CommandTask::Init, name: (**known).to_owned(), value: None }.add_to(&mut lists);
        area::knows_flags(engine, &lists)
    };
    let alike =
        |known: &str| strsim::jaro_winkler(&known.to_lowercase(), &name.replace('-', "").to_lowercase());
    let nearest = names.iter().filter(has).max_by(|one, other| alike(one).total_cmp(&alike(other)));
    let failure = Failure::usage(format!("the server's protocol has no flag {name:?} for {engine}"));
    match nearest.filter(|nearest| alike(nearest) >= ALIKE) {
        Some(nearest) => failure.hint(format!("did you mean {nearest}?")),
        None => failure.hint("docs/protocol.md lists the flags"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(engine: &EngineName, flags: &[&str]) -> Result<FlagLists, Failure> {
        let flags = flags.iter().map(|flag| parse(flag).unwrap()).collect();
        FlagOptions { flags }.lists(engine, FlagLists::default())
    }

    #[test]
    fn the_name_decides_which_list_a_flag_is_in() {
        let pulumi = ["Init:CloudUrl=file:///a=b", "plan:diff", "plan:target=urn:x", "Plan:Target=urn:y"];
        let found = lists(&EngineName::PULUMI, &pulumi).unwrap();
        let plain = |task, flag, value| Flag { task: Some(task), ..Flag::new(flag, value) };
        let expected = [
            plain(CommandTask::Init, PulumiFlag::CloudUrl, Some("file:///a=b")),
            plain(CommandTask::Plan, PulumiFlag::Diff, None),
        ];
        assert_eq!(found.pulumi_flags.known, expected);
        let targets: Vec<_> = found.pulumi_array_flags.known.iter().map(|it| it.value.as_deref()).collect();
        assert_eq!(targets, [Some("urn:x"), Some("urn:y")]);

        let found =
            lists(&EngineName::TOFU, &["Plan:-lock-timeout=3s", "Init:backend-config=path=x"]).unwrap();
        assert_eq!(found.terraform_flags.known[0].flag, TerraformFlag::LockTimeout);
        assert_eq!(found.terraform_array_flags.known[0].flag, TerraformArrayFlag::BackendConfig);
        assert_eq!(found.terraform_array_flags.known[0].value.as_deref(), Some("path=x"));
    }

    #[test]
    fn a_flag_that_cannot_be_sent_is_refused() {
        for text in ["upgrade", "Init", "Deploy:upgrade"] {
            parse(text).unwrap_err();
        }
        let error = |engine, flag| format!("{:?}", lists(&engine, &[flag]).unwrap_err());
        assert!(error(EngineName::TERRAFORM, "Init:CloudUrl=x").contains("no flag"));
        assert!(error("ansible".parse().unwrap(), "Init:CloudUr1=x").contains("no flag"));
        assert!(error(EngineName::PULUMI, "Plan:targets=x").contains("did you mean Target"));
        assert!(error(EngineName::TOFU, "Plan:target").contains("--flag Plan:target=VALUE"));
    }
}
