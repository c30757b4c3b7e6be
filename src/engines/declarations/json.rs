//! Blocks in the JSON syntax. A block may be an object or an array of objects. An object may contain the same name more than
//! once, and the engines read each one as a block, while a map would only keep the last.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, in order.
pub(super) struct Members(pub(super) Vec<(String, Box<RawValue>)>);

/// The objects of a block. Other values are ignored.
pub(super) fn bodies(text: &str) -> Result<Vec<Members>, serde_json::Error> {
    match text.trim_start().chars().next() {
        Some('{') => Ok(vec![serde_json::from_str(text)?]),
        Some('[') => {
            let items: Vec<Box<RawValue>> = serde_json::from_str(text)?;
            let objects = items.iter().map(|item| item.get()).filter(|item| item.starts_with('{'));
            objects.map(serde_json::from_str).collect()
        }
        // Invalid JSON is an error.
        _ => serde_json::from_str::<&RawValue>(text).map(|_| Vec::new()),
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(All)
    }
}

struct All;

impl<'de> Visitor<'de> for All {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}
