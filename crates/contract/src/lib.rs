//! The wire types of the runner hub contract: the messages between a server and its runners.
//!
//! Member names are written in camelCase, and enums as integers. Like the .NET client, [`reading`] is more lenient: it
//! matches member names case-insensitively, and enums by number or by name. Nothing here does I/O. The runner and the
//! embedded hub use the same types.

pub mod engine_task;
pub mod enums;
pub mod flags;
pub mod logs;
pub mod names;
pub mod reading;
pub mod requests;
pub mod results;
pub mod schema;

pub use engine_task::{BackendConfig, BackendConfiguration, EngineTask, Hook, InitFlags, InitOptions};
pub use enums::{CommandTask, EngineName, LogLevel, SourceRevisionType, SourceType};
pub use flags::{Flag, FlagList, FlagLists, PulumiArrayFlag, PulumiFlag, TerraformArrayFlag, TerraformFlag};
pub use logs::LogEntry;
pub use names::Task;
pub use requests::{Common, Metadata, Push, PushError, Request, Source, SourceRefresh, TaskRequest};
pub use results::{
    Call, Fault, Outcome, OutcomeKind, OutputSet, OutputValue, PlanData, StepOutcome, Subject, Success,
    Variable, VariableSet,
};
