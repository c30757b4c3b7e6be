//! Argument types in exactly the form of the contract.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hawser_contract::enums::WireEnum;
use hawser_contract::{LogEntry, LogLevel, Task};
use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use uuid::Uuid;

/// A log entry with all members and no others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct StrictEntry {
    job_id: Guid,
    timestamp: Timestamp,
    pub(super) batch_time_stamp: Timestamp,
    #[serde(deserialize_with = "nullable")]
    stack_id: Option<Guid>,
    #[serde(deserialize_with = "nullable")]
    namespace_id: Option<Guid>,
    module_id: Guid,
    stack_name: String,
    namespace_name: String,
    module_name: String,
    level: Number<LogLevel>,
    message: String,
    task_name: Task,
    #[serde(deserialize_with = "nullable")]
    tags: Option<BTreeMap<String, String>>,
}

impl StrictEntry {
    pub(super) fn into_entry(self) -> LogEntry<'static> {
        let tags = |tags: BTreeMap<String, String>| {
            tags.into_iter().map(|(name, value)| (Cow::Owned(name), Cow::Owned(value))).collect()
        };
        LogEntry {
            job_id: self.job_id.0,
            timestamp: self.timestamp,
            batch_time_stamp: self.batch_time_stamp,
            stack_id: self.stack_id.map(|id| id.0),
            namespace_id: self.namespace_id.map(|id| id.0),
            module_id: self.module_id.0,
            stack_name: self.stack_name.into(),
            namespace_name: self.namespace_name.into(),
            module_name: self.module_name.into(),
            level: self.level.0,
            message: self.message.into(),
            task_name: self.task_name.name().into(),
            tags: self.tags.map(tags),
        }
    }
}

/// A GUID in the form of the contract: lowercase and hyphenated.
pub(super) struct Guid(pub(super) Uuid);

impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format!("{text:?} is not a lowercase hyphenated GUID"));
        let id: Uuid = text.parse().map_err(|_| wrong())?;
        let mut buffer = Uuid::encode_buffer();
        if *id.hyphenated().encode_lower(&mut buffer) == *text { Ok(Self(id)) } else { Err(wrong()) }
    }
}

/// An enum in the form of the contract: a number.
pub(super) struct Number<E>(pub(super) E);

impl<'de, E: WireEnum> Deserialize<'de> for Number<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u8::deserialize(deserializer)?;
        let value = E::ALL.iter().copied().find(|it| it.number() == number);
        value.map(Self).ok_or_else(|| D::Error::custom(format!("{number} is not a valid {}", E::NAME)))
    }
}

/// A member that may be null but must be present. A plain `Option` could be missing.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}
