//! `hawser job`: submits jobs to `hawser hub`, and follows and cancels them.

mod follow;
mod hook;
mod id;
mod names;
mod source;

use std::path::{Path, PathBuf};

use hawser_contract::requests::CancelKind;
use hawser_contract::{EngineName, SourceRevisionType, SourceType};
use hawser_dev_server::{AdminClient, AdminError, FollowAnswer, HubData, JobKind, JobSpec, listening_url};
use url::Url;
use uuid::Uuid;

use self::id::JobId;
use self::names::ModuleNames;
use super::flags::FlagOptions;
use super::hub::DEFAULT_DATA;
use super::{Failure, name_and_value, out};
use crate::local::{area, view};
use crate::script::quote::quote;

/// The environment variable with the admin token, for use without a data directory.
pub(super) const TOKEN_VARIABLE: &str = "HAWSER_HUB_ADMIN_TOKEN";

/// What to do if a job does not exist.
const FORGOTTEN: &str = "`hawser job list` prints the jobs; a hub forgets them when it restarts";

/// The help heading of the options that every command has.
const HUB: &str = "Hub options";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: JobCommand,
    /// URL of the hub [default: the hub that uses the data directory]. The admin token is read from the environment
    /// variable HAWSER_HUB_ADMIN_TOKEN or from the data directory
    #[arg(long, global = true, value_name = "URL", help_heading = HUB, value_parser = hub_url)]
    hub: Option<String>,
    /// Data directory of the hub, or the directory that contains it
    #[arg(long, global = true, default_value = DEFAULT_DATA, value_name = "DIR", help_heading = HUB)]
    data: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum JobCommand {
    /// Plan and apply
    Apply(Box<Submit>),
    /// Plan without changing anything
    Plan(Box<Submit>),
    /// Plan the destroy and run it
    Destroy(Box<Submit>),
    /// List all jobs of the hub
    List,
    /// Follow a submitted job
    Follow(JobArgs),
    /// Cancel a job
    Cancel {
        #[command(flatten)]
        job: JobArgs,
        /// Kill its processes instead of interrupting the engine
        #[arg(long)]
        kill: bool,
    },
    /// Approve a job that is waiting for approval
    Approve(JobArgs),
    /// Reject a job that is waiting for approval, which ends it
    Reject(JobArgs),
}

#[derive(Debug, clap::Args)]
struct JobArgs {
    /// Job ID, as printed by `hawser job apply` and `hawser job list`, or the start of it
    #[arg(value_name = "JOB")]
    id: JobId,
}

fn hub_url(text: &str) -> Result<String, String> {
    let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    match Url::parse(text) {
        Ok(url) if is_http(&url) => Ok(text.to_owned()),
        _ => Err("expected a URL with scheme and port, such as http://127.0.0.1:8900".to_owned()),
    }
}

#[derive(Debug, clap::Args)]
struct Submit {
    /// Git URL, or a directory in a git repository; only committed files are used
    source: String,
    /// Branch, tag, or commit [default: the default branch]
    #[arg(long, default_value = "", hide_default_value = true)]
    revision: String,
    /// Treat the revision as a version range, such as `1.*`
    #[arg(long)]
    version_range: bool,
    /// Treat SOURCE as a module in a Terraform registry
    #[arg(long)]
    registry: bool,
    /// Directory of the module, relative to the root of the source
    #[arg(long)]
    subdirectory: Option<String>,
    /// Jobs with the same stack, namespace, and module share a working copy and a local state. It is also the name of
    /// Pulumi's stack [default: local, and snapcd for Pulumi]
    #[arg(long)]
    stack: Option<String>,
    /// See --stack [default: derived from SOURCE without its credentials and revision]
    #[arg(long)]
    namespace: Option<String>,
    /// See --stack [default: derived from SOURCE and the directory of the module]
    #[arg(long)]
    module: Option<String>,
    /// terraform, tofu, or pulumi [default: the first of tofu, terraform, and pulumi that fits SOURCE and is installed here,
    /// where a URL fits tofu and terraform; terraform if none is installed]
    #[arg(long)]
    engine: Option<EngineName>,
    /// Value of a declared variable, in the syntax of terraform's -var: HCL for lists and objects, otherwise plain text
    #[arg(long = "var", value_name = "NAME=VALUE", value_parser = name_and_value)]
    vars: Vec<(String, String)>,
    #[command(flatten)]
    flags: FlagOptions,
    /// Script to run before or after a task, such as `Plan:before=FILE` or `Init:after=FILE`
    #[arg(long = "hook", value_name = "TASK:WHEN=FILE", value_parser = name_and_value)]
    hooks: Vec<(String, String)>,
    /// Environment variable for the engine
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = name_and_value)]
    envs: Vec<(String, String)>,
    /// Run the job only on the runner with this instance name
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Wait for `hawser job approve` before changing anything
    #[arg(long)]
    needs_approval: bool,
    /// Delete the leftovers of earlier runs before init
    #[arg(long)]
    clean_init: bool,
    /// Print the job ID and exit
    #[arg(long)]
    no_wait: bool,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    super::runtime()?.block_on(run(args))
}

async fn run(args: Args) -> Result<(), Failure> {
    let Args { command, hub, data } = args;
    let options = options(hub.as_deref(), &data);
    let client = client(hub, &data)?;
    match command {
        JobCommand::Apply(submit) => self::submit(&client, &options, JobKind::Apply, *submit).await?,
        JobCommand::Plan(submit) => self::submit(&client, &options, JobKind::Plan, *submit).await?,
        JobCommand::Destroy(submit) => self::submit(&client, &options, JobKind::Destroy, *submit).await?,
        JobCommand::Follow(job) => {
            let id = job.id.resolve(&client).await?;
            follow::follow(&client, &options, id).await?;
        }
        JobCommand::List => {
            let jobs = client.list().await.map_err(failure)?;
            if jobs.is_empty() {
                // Not on stdout, where a script may count lines.
                out::aside("the hub has no jobs");
            }
            for job in jobs {
                out::untrusted_line(&id::line(&job));
            }
        }
        JobCommand::Cancel { job, kill } => {
            let kind = if kill { CancelKind::Kill } else { CancelKind::Graceful };
            let id = job.id.resolve(&client).await?;
            client.cancel(id, kind).await.map_err(failure)?;
            let requested = match kind {
                CancelKind::Graceful => "cancel requested",
                CancelKind::Kill => "kill requested",
            };
            let remark = match (absent_runner(&client, id).await, kind) {
                (Some(runner), _) => {
                    format!("; runner {runner:?} is not connected, the request takes effect when it returns")
                }
                (None, CancelKind::Graceful) => {
                    "; the engine may take a while to stop (--kill does not wait for it)".to_owned()
                }
                (None, CancelKind::Kill) => String::new(),
            };
            out::line(format_args!(
                "job {id}: {requested}{remark}. Follow it with `hawser job follow {id}{options}`."
            ));
        }
        JobCommand::Approve(job) => {
            let id = job.id.resolve(&client).await?;
            client.approve(id).await.map_err(failure)?;
            out::line(format_args!("job {id} approved"));
        }
        JobCommand::Reject(job) => {
            let id = job.id.resolve(&client).await?;
            client.reject(id).await.map_err(failure)?;
            out::line(format_args!("job {id} rejected"));
        }
    }
    Ok(())
}

/// The runner that has the job, if the job has not ended and the runner is not connected.
async fn absent_runner(client: &AdminClient, job: Uuid) -> Option<String> {
    // Answers at once, and without the log. The cancel was accepted, so an error here does not matter.
    let FollowAnswer { job, runners, .. } = client.follow(job, usize::MAX, "").await.ok()?;
    job.owner.filter(|owner| !job.state.is_ended() && !runners.contains(owner))
}

/// The options with which another command finds the same hub.
fn options(hub: Option<&str>, data: &Path) -> String {
    let hub = hub.map(|url| format!(" --hub {}", quote(url))).unwrap_or_default();
    let is_default = data == Path::new(DEFAULT_DATA);
    let data = if is_default { String::new() } else { format!(" --data {}", quote(&data.to_string_lossy())) };
    format!("{hub}{data}")
}

/// Finds the hub and its token: both come from the command line or the environment, or else from the data directory.
fn client(hub: Option<String>, data: &Path) -> Result<AdminClient, Failure> {
    let failed = |error: hawser_dev_server::DataError| Failure::failed(error.to_string());
    let data = &data_directory(data);
    let token = match std::env::var(TOKEN_VARIABLE) {
        Ok(token) if !token.is_empty() => token,
        _ => match HubData::load(data).map_err(failed)? {
            Some(data) => data.admin_token,
            None => return Err(no_token(hub.as_deref(), data)),
        },
    };
    let url = match hub {
        Some(url) => url,
        None => listening_url(data).map_err(failed)?.ok_or_else(|| {
            let message = format!("no hub is running with the data directory {}", data.display());
            Failure::unavailable(message).hint("start `hawser hub`, or pass its URL with --hub")
        })?,
    };
    AdminClient::new(&url, &token).map_err(failure)
}

/// `--data` may name the directory that the hub was started in.
fn data_directory(path: &Path) -> PathBuf {
    let below = path.join(DEFAULT_DATA);
    if !HubData::is_in(path) && HubData::is_in(&below) { below } else { path.to_owned() }
}

fn no_token(hub: Option<&str>, data: &Path) -> Failure {
    let data = data.display();
    match hub {
        Some(url) => Failure::unavailable(format!(
            "no admin token for the hub at {url} in the directory {data}"
        ))
        .hint(format!(
            "pass the data directory of that hub with --data (`{DEFAULT_DATA}` in the directory it was started in), or set \
             {TOKEN_VARIABLE} to the `adminToken` in its identity.json; a stateless hub prints the token at start"
        )),
        None => Failure::unavailable(format!("no hub was started with the data directory {data}")).hint(format!(
            "start `hawser hub` in this directory, pass its data directory with --data, \
             or pass --hub and set {TOKEN_VARIABLE}"
        )),
    }
}

async fn submit(client: &AdminClient, options: &str, kind: JobKind, args: Submit) -> Result<(), Failure> {
    let engine = args.engine.unwrap_or_else(|| source::engine(&args.source, args.subdirectory.as_deref()));
    let source = if args.registry {
        source::JobSource { url: args.source, subdirectory: None }
    } else {
        source::resolve(&args.source)?
    };
    let mut spec = JobSpec::new(kind, source.url);
    spec.source.source_revision = args.revision;
    if args.registry {
        spec.source.source_type = SourceType::Registry;
    }
    if args.version_range {
        spec.source.source_revision_type = SourceRevisionType::SemanticVersionRange;
    }
    spec.subdirectory = args.subdirectory.or(source.subdirectory);
    let names = ModuleNames::new(&spec.source.source_url, args.registry, spec.subdirectory.as_deref());
    let stack = args.stack.as_deref().and_then(|stack| area::stack_flags(&engine, stack));
    spec.flags = args.flags.lists(&engine, stack.unwrap_or_default())?;
    spec.stack_name = args.stack.unwrap_or_else(|| area::STACK.to_owned());
    spec.namespace_name = args.namespace.unwrap_or(names.namespace);
    spec.module_name = args.module.unwrap_or(names.module);
    spec.declares_variables = area::declares_variables(&engine);
    spec.engine = engine;
    spec.typed_parameters = args.vars.into_iter().collect();
    spec.env_vars = args.envs.into_iter().collect();
    for (place, file) in &args.hooks {
        hook::add(&mut spec.hooks, place, file)?;
    }
    spec.instance = args.instance;
    spec.needs_approval = args.needs_approval;
    spec.clean_init = args.clean_init;
    let job = client.submit(&spec).await.map_err(failure)?;
    let module = format!("module {}/{}/{}", spec.stack_name, spec.namespace_name, spec.module_name);
    if args.no_wait {
        // Not on stdout, where a script expects only the ID.
        out::aside(view::clean(&module, false));
        out::line(job);
        return Ok(());
    }
    out::line(format_args!("job {job}"));
    out::untrusted_line(&module);
    follow::follow(client, options, job).await
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn failure(error: AdminError) -> Failure {
    let message = error.to_string();
    match error {
        AdminError::NotRunning { .. } => {
            Failure::unavailable(message).hint("start `hawser hub`, or pass its URL with --hub")
        }
        AdminError::WrongToken { .. } => Failure::failed(message).hint(format!(
            "pass the data directory of this hub with --data; {TOKEN_VARIABLE} takes precedence if it is set"
        )),
        AdminError::NoHub { .. } => Failure::unavailable(message).hint("check --hub"),
        AdminError::UnknownJob(_) => Failure::failed(message).hint(FORGOTTEN),
        AdminError::Unreadable { .. } => {
            Failure::failed(message).hint("use the same version of hawser for the hub and for `hawser job`")
        }
        AdminError::Refused(_) | AdminError::Client(_) => Failure::failed(message),
    }
}
