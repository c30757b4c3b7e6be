//! The secrets that are known now, and who must not say them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use uuid::Uuid;

use super::{Redactor, Rules};

/// All secrets of the process. Cheap to clone; every clone is the same vault.
#[derive(Clone)]
pub struct Vault(Arc<Inner>);

struct Inner {
    rules: Rules,
    own: Mutex<Shelf>,
    jobs: Mutex<HashMap<Uuid, Weak<Job>>>,
}

/// Some secrets, and how often they have changed.
#[derive(Default)]
struct Shelf {
    secrets: BTreeSet<String>,
    version: u64,
}

/// The secrets of one job, for as long as somebody holds this.
#[derive(Clone)]
pub struct JobSecrets {
    vault: Vault,
    /// None outside of any job.
    job: Option<Arc<Job>>,
}

#[derive(Default)]
struct Job {
    shelf: Mutex<Shelf>,
    compiled: Mutex<Option<Compiled>>,
}

struct Compiled {
    versions: (u64, u64),
    redactor: Arc<Redactor>,
}

impl Vault {
    pub fn new(rules: Rules) -> Self {
        let secrets: BTreeSet<_> = rules.values().map(str::to_owned).collect();
        let own = Mutex::new(Shelf { secrets, version: 0 });
        Self(Arc::new(Inner { rules, own, jobs: Mutex::default() }))
    }

    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// Adds a secret of the runner itself: no job and no log may ever say it.
    pub fn learn(&self, secret: &str) {
        locked(&self.0.own).add(secret, &self.0.rules);
    }

    /// Masks everything that is known now, of the runner and of all jobs: for what belongs to no job.
    pub fn redactor(&self) -> Arc<Redactor> {
        let jobs: Vec<Arc<Job>> = locked(&self.0.jobs).values().filter_map(Weak::upgrade).collect();
        let mut secrets = locked(&self.0.own).secrets.clone();
        for job in jobs {
            secrets.extend(locked(&job.shelf).secrets.iter().cloned());
        }
        Arc::new(Redactor::new(secrets.iter().map(String::as_str), &self.0.rules))
    }

    /// The secrets of a job, shared by all who ask for them at the same time.
    pub fn job(&self, job_id: Option<Uuid>) -> JobSecrets {
        let job = job_id.map(|job_id| {
            let mut jobs = locked(&self.0.jobs);
            jobs.retain(|_, job| job.strong_count() > 0);
            let known = jobs.get(&job_id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let job = Arc::new(Job::default());
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
        let shelf = self.job.as_ref().map_or(&self.vault.0.own, |job| &job.shelf);
        let mut shelf = locked(shelf);
        for secret in secrets {
            shelf.add(secret, &self.vault.0.rules);
        }
    }

    /// Masks what is known now; to be asked for again when more may have been learnt.
    pub fn redactor(&self) -> Arc<Redactor> {
        let own = locked(&self.vault.0.own);
        let Some(job) = &self.job else {
            return Arc::new(Redactor::new(own.texts(), &self.vault.0.rules));
        };
        let shelf = locked(&job.shelf);
        let versions = (own.version, shelf.version);
        let mut compiled = locked(&job.compiled);
        match &*compiled {
            Some(known) if known.versions == versions => Arc::clone(&known.redactor),
            _ => {
                let secrets = own.texts().chain(shelf.texts());
                let redactor = Arc::new(Redactor::new(secrets, &self.vault.0.rules));
                *compiled = Some(Compiled { versions, redactor: Arc::clone(&redactor) });
                redactor
            }
        }
    }
}

impl Shelf {
    fn texts(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(String::as_str)
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
