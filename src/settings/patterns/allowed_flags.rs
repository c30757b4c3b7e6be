//! Flags by their names in the contract: `Policy.AllowedFlags`.

use std::str::FromStr;

use hawser_contract::enums::WireEnum;
use hawser_contract::{PulumiArrayFlag, PulumiFlag, TerraformArrayFlag, TerraformFlag};

use crate::settings::diagnostics::did_you_mean;

/// One entry of `Policy.AllowedFlags`, case-insensitive. It applies to every engine that has the flag.
#[derive(Debug, Clone, PartialEq)]
pub struct FlagName(&'static str);

impl FromStr for FlagName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().to_ascii_lowercase();
        if let Some(known) = all_names().find(|known| known.eq_ignore_ascii_case(&wanted)) {
            return Ok(Self(known));
        }
        let near = |known: &&'static str| strsim::jaro_winkler(&known.to_ascii_lowercase(), &wanted);
        let nearest =
            all_names().max_by(|a, b| near(a).total_cmp(&near(b))).filter(|known| near(known) > 0.8);
        Err(format!("is not a known flag{}", did_you_mean(nearest)))
    }
}

impl FlagName {
    pub fn matches(&self, name: &str) -> bool {
        self.0.eq_ignore_ascii_case(name)
    }
}

fn all_names() -> impl Iterator<Item = &'static str> {
    fn names<T: WireEnum>() -> impl Iterator<Item = &'static str> {
        T::ALL.iter().map(|flag| flag.name())
    }
    names::<TerraformFlag>()
        .chain(names::<TerraformArrayFlag>())
        .chain(names::<PulumiFlag>())
        .chain(names::<PulumiArrayFlag>())
}
