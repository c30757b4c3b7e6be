//! `hawser job`: submit a job to a hub that `hawser hub` runs, follow it, and cancel it.

mod follow;
mod names;
mod source;

use std::path::{Path, PathBuf};

use hawser_contract::requests::CancelKind;
use hawser_contract::{Engine, SourceRevisionType, SourceType};
use hawser_dev_server::{AdminClient, AdminError, HubData, JobKind, JobSpec, listening_url};
use url::Url;
use uuid::Uuid;

use super::hub::DEFAULT_DATA;
use super::{Failure, out};
use crate::local::view;
use crate::script::quote::quote;

/// Names the admin token where there is no data directory.
pub(super) const TOKEN_VARIABLE: &str = "HAWSER_HUB_ADMIN_TOKEN";

/// Sets the options that every command has apart from its own.
const HUB: &str = "Which hub";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: JobCommand,
    /// URL of the hub; not given: the one that runs with the data directory. The admin token is in the data
    /// directory, or in the environment variable HAWSER_HUB_ADMIN_TOKEN
    #[arg(long, global = true, value_name = "URL", help_heading = HUB, value_parser = hub_url)]
    hub: Option<String>,
    /// The hub's data directory, or the directory that it is in
    #[arg(long, global = true, default_value = DEFAULT_DATA, value_name = "DIR", help_heading = HUB)]
    data: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum JobCommand {
    /// Plan and apply
    Apply(Box<Submit>),
    /// Plan, and change nothing
    Plan(Box<Submit>),
    /// Plan to destroy, and destroy
    Destroy(Box<Submit>),
    /// Show all jobs of the hub
    List,
    /// Follow a job that was submitted before
    Follow(JobArgs),
    /// Cancel a job
    Cancel {
        #[command(flatten)]
        job: JobArgs,
        /// End its processes now in place of interrupting the engine
        #[arg(long)]
        kill: bool,
    },
    /// Let a job go on that waits for approval
    Approve(JobArgs),
    /// End a job that waits for approval
    Reject(JobArgs),
}

#[derive(Debug, clap::Args)]
struct JobArgs {
    /// The job's id, as `hawser job apply` and `hawser job list` print it
    #[arg(value_name = "JOB", value_parser = job_id)]
    id: Uuid,
}

fn hub_url(text: &str) -> Result<String, String> {
    let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    match Url::parse(text) {
        Ok(url) if is_http(&url) => Ok(text.to_owned()),
        _ => Err("write it with scheme and port, such as http://127.0.0.1:8900".to_owned()),
    }
}

fn job_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| "not the id of a job; `hawser job list` shows them".to_owned())
}

#[derive(Debug, clap::Args)]
struct Submit {
    /// Git URL, or a directory that is (in) a git repository; only what is committed counts
    source: String,
    /// Branch, tag or commit; not given: the default branch
    #[arg(long, default_value = "", hide_default_value = true)]
    revision: String,
    /// The revision is a range of versions such as `1.*`
    #[arg(long)]
    version_range: bool,
    /// SOURCE is a module of a Terraform registry
    #[arg(long)]
    registry: bool,
    /// Directory of the module below the root of the source
    #[arg(long)]
    subdirectory: Option<String>,
    /// Jobs with the same stack, namespace and module share a working copy and a local state; not given: `local`
    #[arg(long)]
    stack: Option<String>,
    /// See --stack; not given: made from SOURCE, its login and revision left out
    #[arg(long)]
    namespace: Option<String>,
    /// See --stack; not given: made from SOURCE and the directory of the module
    #[arg(long)]
    module: Option<String>,
    /// terraform, tofu or pulumi
    #[arg(long, default_value = "terraform")]
    engine: Engine,
    /// Value of a variable that the module declares, as terraform's own -var takes it: HCL for lists and objects, else just text
    #[arg(long = "var", value_name = "NAME=VALUE", value_parser = name_and_value)]
    vars: Vec<(String, String)>,
    /// Environment variable of the engine
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = name_and_value)]
    envs: Vec<(String, String)>,
    /// Only the runner with this instance name may have the job
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Wait for `hawser job approve` before anything is changed
    #[arg(long)]
    needs_approval: bool,
    /// Throw away what earlier runs have left before init
    #[arg(long)]
    clean_init: bool,
    /// Print the job's id and leave
    #[arg(long)]
    no_wait: bool,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    super::runtime()?.block_on(run(args))
}

async fn run(args: Args) -> Result<(), Failure> {
    let Args { command, hub, data } = args;
    let options = options(hub.as_deref(), &data);
    let client = client(hub, &data)?;
    match command {
        JobCommand::Apply(submit) => self::submit(&client, &options, JobKind::Apply, *submit).await,
        JobCommand::Plan(submit) => self::submit(&client, &options, JobKind::Plan, *submit).await,
        JobCommand::Destroy(submit) => self::submit(&client, &options, JobKind::Destroy, *submit).await,
        JobCommand::Follow(job) => follow::follow(&client, &options, job.id).await,
        JobCommand::List => {
            let jobs = client.list().await.map_err(failure)?;
            if jobs.is_empty() {
                // Not on stdout, where a script counts lines.
                out::aside("the hub has no jobs");
            }
            for job in jobs {
                let owner = job.owner.as_deref().unwrap_or("-");
                let at = job.submitted_at.strftime("%Y-%m-%d %H:%M:%SZ");
                out::foreign_line(&format!(
                    "{} {at} {:<7} {} {owner} {}",
                    job.id, job.kind, job.module, job.state
                ));
            }
            Ok(())
        }
        JobCommand::Cancel { job, kill } => {
            let kind = if kill { CancelKind::Kill } else { CancelKind::Graceful };
            client.cancel(job.id, kind).await.map_err(failure)?;
            let asked = match kind {
                CancelKind::Graceful => {
                    "asked to stop; an engine at work may take a while, --kill does not wait for it"
                }
                CancelKind::Kill => "its processes are to end now",
            };
            out::line(format_args!(
                "job {0}: {asked}. hawser job follow {0}{options} shows how it ends",
                job.id
            ));
            Ok(())
        }
        JobCommand::Approve(job) => {
            client.approve(job.id).await.map_err(failure)?;
            out::line(format_args!("job {} approved", job.id));
            Ok(())
        }
        JobCommand::Reject(job) => {
            client.reject(job.id).await.map_err(failure)?;
            out::line(format_args!("job {} rejected", job.id));
            Ok(())
        }
    }
}

/// What the next command needs as well to find the same hub.
fn options(hub: Option<&str>, data: &Path) -> String {
    let hub = hub.map(|url| format!(" --hub {}", quote(url))).unwrap_or_default();
    let is_usual = data == Path::new(DEFAULT_DATA);
    let data = if is_usual { String::new() } else { format!(" --data {}", quote(&data.to_string_lossy())) };
    format!("{hub}{data}")
}

/// Finds the hub and its token: each from the command line or environment, else from the data directory.
fn client(hub: Option<String>, data: &Path) -> Result<AdminClient, Failure> {
    let broken = |error: hawser_dev_server::DataError| Failure::failed(error.to_string());
    let data = &data_directory(data);
    let token = match std::env::var(TOKEN_VARIABLE) {
        Ok(token) if !token.is_empty() => token,
        _ => match HubData::load(data).map_err(broken)? {
            Some(data) => data.admin_token,
            None => return Err(no_token(hub.as_deref(), data)),
        },
    };
    let url = match hub {
        Some(url) => url,
        None => listening_url(data).map_err(broken)?.ok_or_else(|| {
            let message = format!("no hub runs with the data directory {}", data.display());
            Failure::unavailable(message).hint("start `hawser hub`, or say where it is with --hub URL")
        })?,
    };
    AdminClient::new(&url, &token).map_err(failure)
}

/// The directory itself, or the one with the usual name in it: where a hub was started is named as easily as its data.
fn data_directory(given: &Path) -> PathBuf {
    let below = given.join(DEFAULT_DATA);
    if !HubData::is_in(given) && HubData::is_in(&below) { below } else { given.to_owned() }
}

fn no_token(hub: Option<&str>, data: &Path) -> Failure {
    let data = data.display();
    match hub {
        Some(url) => Failure::unavailable(format!(
            "the admin token of the hub at {url} is not known: the directory {data} has none"
        ))
        .hint(format!(
            "name that hub's data directory with --data DIR (`{DEFAULT_DATA}` where it was started), or set {TOKEN_VARIABLE} \
             to the `adminToken` of the identity.json in it; a stateless hub has printed it"
        )),
        None => Failure::unavailable(format!("no hub has been started with the data directory {data}")).hint(
            format!(
                "start `hawser hub` in this directory, name its data directory with --data DIR, \
                 or give --hub URL and set {TOKEN_VARIABLE}"
            ),
        ),
    }
}

async fn submit(client: &AdminClient, options: &str, kind: JobKind, args: Submit) -> Result<(), Failure> {
    let place = if args.registry {
        source::JobSource { url: args.source, subdirectory: None }
    } else {
        source::locate(&args.source)?
    };
    let mut spec = JobSpec::new(kind, place.url);
    spec.source.source_revision = args.revision;
    if args.registry {
        spec.source.source_type = SourceType::Registry;
    }
    if args.version_range {
        spec.source.source_revision_type = SourceRevisionType::SemanticVersionRange;
    }
    spec.subdirectory = args.subdirectory.or(place.subdirectory);
    let names = names::derived(&spec.source.source_url, args.registry, spec.subdirectory.as_deref());
    spec.stack_name = args.stack.unwrap_or(names.stack);
    spec.namespace_name = args.namespace.unwrap_or(names.namespace);
    spec.module_name = args.module.unwrap_or(names.module);
    spec.engine = args.engine;
    spec.typed_parameters = args.vars.into_iter().collect();
    spec.env_vars = args.envs.into_iter().collect();
    spec.instance = args.instance;
    spec.needs_approval = args.needs_approval;
    spec.clean_init = args.clean_init;
    let job = client.submit(&spec).await.map_err(failure)?;
    let module = format!("module {}/{}/{}", spec.stack_name, spec.namespace_name, spec.module_name);
    if args.no_wait {
        // Not on stdout, where a script expects the id alone.
        out::aside(view::clean(&module, false));
        out::line(job);
        return Ok(());
    }
    out::line(format_args!("job {job}"));
    out::foreign_line(&module);
    follow::follow(client, options, job).await
}

/// What the user is told, and what to do about it.
#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
fn failure(error: AdminError) -> Failure {
    let message = error.to_string();
    match error {
        AdminError::NotRunning { .. } => Failure::unavailable(message)
            .hint("start it with `hawser hub`, or say where it is with --hub URL"),
        AdminError::WrongToken { .. } => Failure::failed(message)
            .hint(format!("name the data directory that this hub was started with: --data DIR; {TOKEN_VARIABLE} goes first if it is set")),
        AdminError::NoHub { .. } => Failure::unavailable(message).hint("look at --hub"),
        AdminError::UnknownJob(_) => Failure::failed(message)
            .hint("`hawser job list` shows the jobs; a hub forgets them when it is restarted"),
        AdminError::Unreadable { .. } => {
            Failure::failed(message).hint("hub and `hawser job` should be of the same version")
        }
        AdminError::Refused(_) | AdminError::Client(_) => Failure::failed(message),
    }
}
