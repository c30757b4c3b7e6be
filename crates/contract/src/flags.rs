//! Engine flags as the server sends them: a number or a name, and a value.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::enums::{CommandTask, WireEnum, wire_enum};

wire_enum! {
    /// A flag of terraform or tofu; kebab-case with one dash on the command line.
    TerraformFlag {
        ForceCopy = 0, FromModule = 1, GetPlugins = 2, LockTimeout = 3, Lockfile = 4, MigrateState = 5, Plugin = 6,
        Reconfigure = 7, TestDirectory = 8, Upgrade = 9, CompactWarnings = 10, Concurrency = 11, Lock = 12,
        NoColor = 13, Parallelism = 14, Refresh = 15, RefreshOnly = 16, DetailedExitcode = 17,
        GenerateConfigOut = 18, CreateBeforeDestroy = 19, Raw = 20,
    }
}

wire_enum! {
    /// A flag of terraform or tofu that may be given more than once.
    TerraformArrayFlag { Target = 0, Replace = 1, Exclude = 2, Var = 3, BackendConfig = 4 }
}

wire_enum! {
    /// A flag of pulumi; kebab-case with two dashes on the command line.
    PulumiFlag {
        CloudUrl = 0, LoginLocal = 1, LoginCloud = 2, DefaultOrg = 3, Insecure = 4, OidcExpiration = 5, OidcOrg = 6,
        OidcTeam = 7, OidcToken = 8, OidcUser = 9, StackName = 10, SecretsProvider = 11, CreateStack = 12,
        ConfigFile = 13, Debug = 14, Diff = 15, ExpectNoChanges = 16, Json = 17, Message = 18, Parallel = 19,
        Refresh = 20, RunProgram = 21, ShowConfig = 22, ShowFullOutput = 23, ShowReads = 24,
        ShowReplacementSteps = 25, ShowSames = 26, ShowSecrets = 27, SuppressOutputs = 28, SuppressProgress = 29,
        TargetDependents = 30, ExcludeDependents = 31, Neo = 32, ImportFile = 33, ContinueOnError = 34,
        SkipPreview = 35, Strict = 36, ExcludeProtected = 37, Remove = 38, Shell = 39, Color = 40, Verbose = 41,
        Emoji = 42,
    }
}

wire_enum! {
    /// A flag of pulumi that may be given more than once.
    PulumiArrayFlag {
        PolicyPack = 0, PolicyPackConfig = 1, AttachDebugger = 2, Target = 3, Replace = 4, Exclude = 5,
        TargetReplace = 6, Config = 7,
    }
}

/// A flag in a list. An array flag always has a value. A plain flag may have none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Flag<T> {
    pub task: Option<CommandTask>,
    pub flag: T,
    pub value: Option<String>,
}

impl<T> Flag<T> {
    pub fn new(flag: T, value: Option<&str>) -> Self {
        Self { task: None, flag, value: value.map(str::to_owned) }
    }
}

/// The known flags of a list, and a readable name for each unknown one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagList<T> {
    pub known: Vec<Flag<T>>,
    pub skipped: Vec<String>,
}

impl<T> Default for FlagList<T> {
    fn default() -> Self {
        Self { known: Vec::new(), skipped: Vec::new() }
    }
}

impl<T> From<Vec<Flag<T>>> for FlagList<T> {
    fn from(known: Vec<Flag<T>>) -> Self {
        Self { known, skipped: Vec::new() }
    }
}

impl<T: WireEnum + Serialize> Serialize for FlagList<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.known.serialize(serializer)
    }
}

impl<'de, T: WireEnum> Deserialize<'de> for FlagList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Entry {
            #[serde(default)]
            task: Value,
            #[serde(default)]
            flag: Value,
            #[serde(default)]
            value: Option<String>,
        }
        let mut list = Self::default();
        for entry in Vec::<Entry>::deserialize(deserializer)? {
            match T::from_wire(&entry.flag) {
                Some(flag) => list.known.push(Flag {
                    task: CommandTask::from_wire(&entry.task),
                    flag,
                    value: entry.value,
                }),
                None => list.skipped.push(format!("{} {}", T::NAME, entry.flag)),
            }
        }
        Ok(list)
    }
}

impl<T: schemars::JsonSchema> schemars::JsonSchema for FlagList<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}List", T::schema_name()).into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <Option<Vec<Flag<T>>>>::json_schema(generator)
    }
}

/// The four flag lists of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FlagLists {
    pub terraform_flags: FlagList<TerraformFlag>,
    pub terraform_array_flags: FlagList<TerraformArrayFlag>,
    pub pulumi_flags: FlagList<PulumiFlag>,
    pub pulumi_array_flags: FlagList<PulumiArrayFlag>,
}

impl FlagLists {
    /// A readable name for each unknown flag of the four lists.
    pub fn skipped(&self) -> impl Iterator<Item = &str> {
        self.terraform_flags
            .skipped
            .iter()
            .chain(&self.terraform_array_flags.skipped)
            .chain(&self.pulumi_flags.skipped)
            .chain(&self.pulumi_array_flags.skipped)
            .map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_unknown_flag_is_skipped_and_reported() {
        let lists: FlagLists = serde_json::from_value(json!({
            "terraformFlags": [
                {"task": 1, "flag": 14, "value": "4"},
                {"task": 1, "flag": 999, "value": "x"},
                {"task": "Plan", "flag": "Brandnew", "value": null},
                {"task": 77, "flag": "noColor", "value": null},
            ],
        }))
        .unwrap();
        let known: Vec<_> = lists.terraform_flags.known.iter().map(|it| it.flag).collect();
        assert_eq!(known, [TerraformFlag::Parallelism, TerraformFlag::NoColor]);
        assert_eq!(lists.skipped().collect::<Vec<_>>(), ["TerraformFlag 999", "TerraformFlag \"Brandnew\""]);
    }

    #[test]
    fn the_numbers_are_those_of_the_contract() {
        for (flag, number) in [(PulumiFlag::Emoji, 42), (PulumiFlag::StackName, 10), (PulumiFlag::Strict, 36)]
        {
            assert_eq!(flag.number(), number);
        }
        assert_eq!(TerraformFlag::ALL.len(), 21);
        assert_eq!(PulumiFlag::ALL.len(), 43);
        for (index, flag) in PulumiFlag::ALL.iter().enumerate() {
            assert_eq!(usize::from(flag.number()), index);
        }
    }
}
