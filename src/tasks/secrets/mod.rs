//! Finds the secrets: the runner's own, and those of each job.
//!
//! | where | what counts |
//! |---|---|
//! | settings (`runner::own_secrets`) | the client secret, `JobLogStream.RedactValues`, credentials in `Server.Url` |
//! | the host's environment (`runner::own_secrets`) | values whose names look secret, credentials in any URL (proxies too) |
//! | a request ([`request`]) | the same for its environment, backend settings, parameters and flags; credentials in its source's URL |
//! | the module's folder ([`module`]) | values of variables that are declared `sensitive`, wherever they come from (of arguments in the environment too, [`cli_args`]); its sensitive outputs |
//! | what an engine leaves behind ([`module`]) | sensitive outputs of plan, state and `output.json` |
//!
//! What looks like a secret by its name alone and plainly is none is left out: an existing path, and words like
//! `true` or `default` ([`SecretCollector`]). Whatever is shorter than `JobLogStream.RedactMinimumLength` is left out too.

mod cli_args;
mod found;
pub(crate) mod module;
mod request;
pub(crate) mod watch;

pub(crate) use found::SecretCollector;
