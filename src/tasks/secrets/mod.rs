//! Finds the secrets: the runner's own, and those of each job.
//!
//! | where | secrets |
//! |---|---|
//! | settings (`runner::own_secrets`) | the client secret, `JobLogStream.RedactValues`, credentials in `Server.Url` |
//! | the host's environment (`runner::own_secrets`) | values whose names look secret, credentials in any URL (proxies too) |
//! | a request ([`request`]) | the same for its environment, backend settings, parameters and flags; credentials in its source's URL |
//! | the same, `TF_ENCRYPTION` ([`encryption`]) | all strings but those that are clearly not secret |
//! | the module's folder ([`module`]) | values of variables that are declared `sensitive` or `ephemeral`, from all places (also from arguments in the environment, [`cli_args`]); its sensitive outputs |
//! | the results of an engine ([`module`]) | sensitive outputs and attributes of plan and state, sensitive outputs of `output.json` |
//!
//! Values with secret names are ignored if they are clearly not secret: existing paths, and words like `true` or `default`
//! ([`SecretCollector`]). Values shorter than `JobLogStream.RedactMinimumLength` are ignored too.

mod cli_args;
mod encryption;
mod found;
pub(crate) mod module;
mod request;
pub(crate) mod watch;

pub(crate) use found::SecretCollector;
