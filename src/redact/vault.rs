//! The secrets that are known now, and who must not say them.
//!
//! Compiling takes a moment, so what was compiled is kept until something changes. Nothing is logged while a lock is
//! held: the runtime log is masked by this very vault.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tracing::error;
use uuid::Uuid;

use super::{Redactor, Rules};

/// How many tokens of the runner are known at a time: those of the connection, of its redirects and of some before it.
const PASSING: usize = 32;

/// All secrets of the process. Cheap to clone; every clone is the same vault.
#[derive(Clone)]
pub struct Vault(Arc<Inner>);

struct Inner {
    rules: Rules,
    own: Mutex<Shelf>,
    jobs: Mutex<HashMap<Uuid, Weak<Job>>>,
    /// Of everything, for what belongs to no job.
    compiled: Compiled,
    /// Of the runner's own secrets, for steps that belong to no job.
    compiled_own: Compiled,
    /// Goes up with every secret that is learnt and every job that is gone.
    changes: Arc<AtomicU64>,
    /// That everything is masked has been said.
    said: AtomicBool,
}

/// Some secrets, and how often they have changed.
#[derive(Default)]
struct Shelf {
    secrets: BTreeSet<String>,
    /// Those that are replaced again and again, the latest last.
    passing: VecDeque<String>,
    version: u64,
    /// The secrets are not all known, and this is why.
    unknown: Option<String>,
}

/// The secrets of one job, for as long as somebody holds this.
#[derive(Clone)]
pub struct JobSecrets {
    vault: Vault,
    /// None outside of any job.
    job: Option<Arc<Job>>,
}

struct Job {
    shelf: Mutex<Shelf>,
    compiled: Compiled,
    changes: Arc<AtomicU64>,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// A redactor, and the versions of what it was compiled from.
#[derive(Default)]
struct Compiled(Mutex<Option<(Versions, Arc<Redactor>)>>);

/// Of the runner's own secrets and of the job's.
type Versions = (u64, u64);

impl Compiled {
    fn get(&self, versions: Versions, compile: impl FnOnce() -> Redactor) -> Arc<Redactor> {
        let mut kept = locked(&self.0);
        if let Some((of, redactor)) = &*kept
            && *of == versions
        {
            return Arc::clone(redactor);
        }
        let redactor = Arc::new(compile());
        *kept = Some((versions, Arc::clone(&redactor)));
        redactor
    }
}

impl Vault {
    pub fn new(rules: Rules) -> Self {
        let secrets: BTreeSet<_> = rules.values().map(str::to_owned).collect();
        let own = Mutex::new(Shelf { secrets, ..Shelf::default() });
        Self(Arc::new(Inner {
            rules,
            own,
            jobs: Mutex::default(),
            compiled: Compiled::default(),
            compiled_own: Compiled::default(),
            changes: Arc::default(),
            said: AtomicBool::new(false),
        }))
    }

    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// Adds a secret of the runner itself: no job and no log may ever say it.
    pub fn learn(&self, secret: &str) {
        self.learn_all(&self.0.own, [secret]);
    }

    /// Adds a secret of the runner that is replaced again and again, such as a token. The last [`PASSING`] of them are known:
    /// a runner that reconnects for a year must not carry every token that it ever had.
    pub fn learn_passing(&self, secret: &str) {
        let mut own = locked(&self.0.own);
        if secret.len() < self.0.rules.minimum_length || own.passing.iter().any(|known| known == secret) {
            return;
        }
        own.passing.push_back(secret.to_owned());
        if own.passing.len() > PASSING {
            own.passing.pop_front();
        }
        own.version += 1;
        self.0.changes.fetch_add(1, Ordering::Release);
    }

    fn learn_all<'a>(&self, shelf: &Mutex<Shelf>, secrets: impl IntoIterator<Item = &'a str>) {
        let mut shelf = locked(shelf);
        let before = shelf.version;
        for secret in secrets {
            shelf.add(secret, &self.0.rules);
        }
        if shelf.version != before {
            self.0.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Masks everything that is known now, of the runner and of all jobs: for what belongs to no job. It costs next to
    /// nothing when nothing has changed.
    pub fn redactor(&self) -> Arc<Redactor> {
        // Looked at before the secrets are: what is learnt meanwhile counts at the next call at the latest.
        let changes = self.0.changes.load(Ordering::Acquire);
        self.0.compiled.get((changes, 0), || {
            let jobs: Vec<Arc<Job>> = locked(&self.0.jobs).values().filter_map(Weak::upgrade).collect();
            let mut secrets: BTreeSet<_> = locked(&self.0.own).texts().map(str::to_owned).collect();
            for job in &jobs {
                secrets.extend(locked(&job.shelf).secrets.iter().cloned());
            }
            Redactor::new(secrets.iter().map(String::as_str), &self.0.rules)
        })
    }

    /// The secrets of a job, shared by all who ask for them at the same time.
    pub fn job(&self, job_id: Option<Uuid>) -> JobSecrets {
        let job = job_id.map(|job_id| {
            let mut jobs = locked(&self.0.jobs);
            jobs.retain(|_, job| job.strong_count() > 0);
            let known = jobs.get(&job_id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let job = Arc::new(Job {
                    shelf: Mutex::default(),
                    compiled: Compiled::default(),
                    changes: Arc::clone(&self.0.changes),
                });
                jobs.insert(job_id, Arc::downgrade(&job));
                job
            })
        });
        JobSecrets { vault: self.clone(), job }
    }
}

impl JobSecrets {
    /// Adds secrets of this job.
    pub fn learn<'a>(&self, secrets: impl IntoIterator<Item = &'a str>) {
        self.vault.learn_all(self.job.as_ref().map_or(&self.vault.0.own, |job| &job.shelf), secrets);
    }

    /// Says that the secrets of this job are not all known, so that all its text has to be masked. Outside of a job it
    /// says nothing.
    pub fn hide_everything(&self, reason: &str) {
        let Some(job) = &self.job else { return };
        let mut shelf = locked(&job.shelf);
        shelf.unknown = Some(reason.to_owned());
        shelf.version += 1;
    }

    /// Masks what is known now; to be asked for again when more may have been learnt.
    pub fn redactor(&self) -> Arc<Redactor> {
        let inner = &self.vault.0;
        let redactor = match &self.job {
            None => {
                let own = locked(&inner.own);
                inner.compiled_own.get((own.version, 0), || Redactor::new(own.texts(), &inner.rules))
            }
            Some(job) => {
                let (own, shelf) = (locked(&inner.own), locked(&job.shelf));
                job.compiled.get((own.version, shelf.version), || match &shelf.unknown {
                    Some(reason) => Redactor::of_everything(reason),
                    None => Redactor::new(own.texts().chain(shelf.texts()), &inner.rules),
                })
            }
        };
        if let Some(reason) = redactor.masks_everything()
            && !inner.said.swap(true, Ordering::Relaxed)
        {
            error!("all lines of a job are masked, since its secrets cannot be told from the rest: {reason}");
        }
        redactor
    }
}

impl Shelf {
    fn texts(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().chain(&self.passing).map(String::as_str)
    }

    fn add(&mut self, secret: &str, rules: &Rules) {
        if secret.len() >= rules.minimum_length && self.secrets.insert(secret.to_owned()) {
            self.version += 1;
        }
    }
}

impl std::fmt::Debug for Vault {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault")
    }
}

impl std::fmt::Debug for JobSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobSecrets")
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
