//! The known secrets of the runner and its jobs.
//!
//! Compiling a masker takes time, so it is cached until the secrets change. Secrets can be added during a compilation; only
//! callers that need the same masker wait. Nothing is logged while a lock is held, because this store masks the runtime log.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use tracing::{error, warn};
use uuid::Uuid;

use super::url_credentials::of_source;
use super::{Masker, Rules};

/// How many tokens of the runner are remembered: those of the connection, its redirects, and some earlier ones. The same number
/// of source credentials is remembered. All of them are in every automaton.
const MAX_RECENT: usize = 12;
/// How often a panic hook checks whether the masker is free.
const PANIC_ATTEMPTS: usize = 100;

/// All secrets of the process. Cheap to clone; every clone is the same store.
#[derive(Clone)]
pub struct SecretStore(Arc<StoreInner>);

struct StoreInner {
    rules: Rules,
    own: Mutex<SecretSet>,
    jobs: Mutex<HashMap<Uuid, Weak<StoredJob>>>,
    /// Of all secrets, for text that belongs to no job.
    compiled: Compiled,
    /// Of the runner's secrets, for steps that belong to no job.
    compiled_own: Compiled,
    /// Incremented with every new secret and every dropped job.
    changes: Arc<AtomicU64>,
    /// The error about masking everything was logged.
    everything_logged: AtomicBool,
    /// The warning about missing encodings was logged.
    reduced_logged: AtomicBool,
}

/// Secrets with a version that changes with them.
#[derive(Default)]
struct SecretSet {
    secrets: BTreeSet<String>,
    /// Tokens, which are replaced often.
    tokens: RecentSecrets,
    /// Credentials of sources outside of jobs. They never displace a token.
    sources: RecentSecrets,
    version: u64,
    /// Why the secrets are incomplete, if they are.
    unknown: Option<String>,
}

/// The [`MAX_RECENT`] most recent secrets, oldest first.
#[derive(Default)]
struct RecentSecrets(VecDeque<String>);

impl RecentSecrets {
    /// Adds a secret, or makes it the most recent one again. Returns whether it is new.
    fn add(&mut self, secret: &str) -> bool {
        let known = self.0.iter().position(|known| known == secret).and_then(|at| self.0.remove(at));
        self.0.push_back(secret.to_owned());
        if self.0.len() > MAX_RECENT {
            self.0.pop_front();
        }
        known.is_none()
    }
}

/// A handle to the secrets of one job, which are dropped with the last handle.
#[derive(Clone)]
pub struct JobSecrets {
    secret_store: SecretStore,
    /// None outside of any job.
    job: Option<Arc<StoredJob>>,
}

struct StoredJob {
    set: Mutex<SecretSet>,
    compiled: Compiled,
    changes: Arc<AtomicU64>,
}

impl Drop for StoredJob {
    fn drop(&mut self) {
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// A cached masker with the versions of its secrets.
#[derive(Default)]
struct Compiled(Mutex<Option<(Versions, Arc<Masker>)>>);

/// The versions of the runner's and of the job's secrets.
type Versions = (u64, u64);

impl Compiled {
    fn get(&self, versions: Versions, compile: impl FnOnce() -> Masker) -> Arc<Masker> {
        let mut cached = locked(&self.0);
        if let Some((compiled_from, masker)) = &*cached
            && *compiled_from == versions
        {
            return Arc::clone(masker);
        }
        // Drop the old masker first, to save memory while the new one is built.
        *cached = None;
        let masker = Arc::new(compile());
        *cached = Some((versions, Arc::clone(&masker)));
        masker
    }

    /// Whether no thread is compiling.
    fn is_free(&self) -> bool {
        !matches!(self.0.try_lock(), Err(TryLockError::WouldBlock))
    }
}

impl SecretStore {
    pub fn new(rules: Rules) -> Self {
        let secrets: BTreeSet<_> = rules.values().map(str::to_owned).collect();
        let own = Mutex::new(SecretSet { secrets, ..SecretSet::default() });
        Self(Arc::new(StoreInner {
            rules,
            own,
            jobs: Mutex::default(),
            compiled: Compiled::default(),
            compiled_own: Compiled::default(),
            changes: Arc::default(),
            everything_logged: AtomicBool::new(false),
            reduced_logged: AtomicBool::new(false),
        }))
    }

    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// Adds a secret of the runner, which is masked in all logs.
    pub fn learn(&self, secret: &str) {
        self.learn_all(&self.0.own, [secret]);
    }

    /// Adds a secret of the runner that is replaced often, such as a token. Only the last [`MAX_RECENT`] are remembered, so
    /// that a runner that reconnects for a year does not accumulate tokens.
    pub fn learn_passing(&self, secret: &str) {
        self.learn_recent(secret, |own| &mut own.tokens);
    }

    fn learn_recent(&self, secret: &str, queue: impl FnOnce(&mut SecretSet) -> &mut RecentSecrets) {
        let mut own = locked(&self.0.own);
        if secret.len() >= self.0.rules.minimum_length && queue(&mut own).add(secret) {
            own.version += 1;
            self.0.changes.fetch_add(1, Ordering::Release);
        }
    }

    fn learn_all<'a>(&self, set: &Mutex<SecretSet>, secrets: impl IntoIterator<Item = &'a str>) {
        let mut set = locked(set);
        let before = set.version;
        for secret in secrets {
            set.add(secret, &self.0.rules);
        }
        if set.version != before {
            self.0.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Masks the secrets of the runner and of all jobs, for text that belongs to no job. Cheap if nothing has changed.
    pub fn masker(&self) -> Arc<Masker> {
        // Read before the secrets: a secret that is added meanwhile counts from the next call at the latest.
        let changes = self.0.changes.load(Ordering::Acquire);
        self.0.compiled.get((changes, 0), || {
            let jobs: Vec<Arc<StoredJob>> = locked(&self.0.jobs).values().filter_map(Weak::upgrade).collect();
            let mut secrets: BTreeSet<_> = locked(&self.0.own).texts().map(str::to_owned).collect();
            for job in &jobs {
                secrets.extend(locked(&job.set).secrets.iter().cloned());
            }
            Masker::new(secrets.iter().map(String::as_str), &self.0.rules)
        })
    }

    /// The same for a thread that panics, which would deadlock if it is the one that compiles. None if the masker stays
    /// locked.
    pub(crate) fn masker_in_a_panic(&self) -> Option<Arc<Masker>> {
        for _ in 0..PANIC_ATTEMPTS {
            if self.0.compiled.is_free() {
                return Some(self.masker());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Returns the secrets of a job, shared by all current handles.
    pub fn job(&self, job_id: Option<Uuid>) -> JobSecrets {
        let job = job_id.map(|job_id| {
            let mut jobs = locked(&self.0.jobs);
            jobs.retain(|_, job| job.strong_count() > 0);
            let known = jobs.get(&job_id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let job = Arc::new(StoredJob {
                    set: Mutex::default(),
                    compiled: Compiled::default(),
                    changes: Arc::clone(&self.0.changes),
                });
                jobs.insert(job_id, Arc::downgrade(&job));
                job
            })
        });
        JobSecrets { secret_store: self.clone(), job }
    }
}

impl JobSecrets {
    /// Adds secrets of this job.
    pub fn learn<'a>(&self, secrets: impl IntoIterator<Item = &'a str>) {
        self.secret_store
            .learn_all(self.job.as_ref().map_or(&self.secret_store.0.own, |job| &job.set), secrets);
    }

    /// Marks the secrets of this job as incomplete, so that all its text is masked. Outside of a job it does nothing.
    pub fn hide_everything(&self, reason: &str) {
        let Some(job) = &self.job else { return };
        let mut set = locked(&job.set);
        set.unknown = Some(reason.to_owned());
        set.version += 1;
    }

    /// Masks the secrets known now. Get a new masker when secrets may have been added.
    pub fn masker(&self) -> Arc<Masker> {
        let inner = &self.secret_store.0;
        // Read before the secrets, as in `SecretStore::masker`. Only the lock of the masker is held during the compilation.
        let own_version = locked(&inner.own).version;
        let own = || locked(&inner.own).texts().map(str::to_owned).collect::<BTreeSet<_>>();
        let masker = match &self.job {
            None => inner
                .compiled_own
                .get((own_version, 0), || Masker::new(own().iter().map(String::as_str), &inner.rules)),
            Some(job) => {
                let version = locked(&job.set).version;
                job.compiled.get((own_version, version), || {
                    let mut secrets = own();
                    let set = locked(&job.set);
                    if let Some(reason) = &set.unknown {
                        return Masker::of_everything(reason);
                    }
                    secrets.extend(set.texts().map(str::to_owned));
                    drop(set);
                    Masker::new(secrets.iter().map(String::as_str), &inner.rules)
                })
            }
        };
        if let Some(reason) = masker.masks_everything()
            && !inner.everything_logged.swap(true, Ordering::Relaxed)
        {
            error!(reason, "masking all lines of a job");
        }
        if masker.is_reduced() && !inner.reduced_logged.swap(true, Ordering::Relaxed) {
            warn!(
                "masking a job's secrets only in their common encodings, because they are too many or too long; \
                 long secrets may be masked only as plain text"
            );
        }
        masker
    }

    /// Adds the credentials in the URL of a source and returns them. Outside of a job only recent ones are remembered, because
    /// each request may have new ones.
    pub(crate) fn learn_credentials(&self, url: &str) -> Vec<String> {
        let rules = &self.secret_store.0.rules;
        let credentials = of_source(url, rules);
        let secrets: BTreeSet<&str> = credentials.iter().filter_map(|text| rules.secret_in(text)).collect();
        let secrets: Vec<String> = secrets.into_iter().map(str::to_owned).collect();
        match self.job {
            Some(_) => self.learn(secrets.iter().map(String::as_str)),
            None => secrets
                .iter()
                .for_each(|secret| self.secret_store.learn_recent(secret, |own| &mut own.sources)),
        }
        secrets
    }
}

impl SecretSet {
    fn texts(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().chain(&self.tokens.0).chain(&self.sources.0).map(String::as_str)
    }

    fn add(&mut self, secret: &str, rules: &Rules) {
        if secret.len() >= rules.minimum_length && self.secrets.insert(secret.to_owned()) {
            self.version += 1;
        }
    }
}

impl std::fmt::Debug for SecretStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretStore")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_during_a_compilation_does_not_deadlock() {
        let secret_store = SecretStore::new(Rules::new(&Default::default()).unwrap());
        secret_store.learn("hunter22");
        let compiling = locked(&secret_store.0.compiled.0);
        assert!(secret_store.masker_in_a_panic().is_none());
        drop(compiling);
        assert_eq!(secret_store.masker_in_a_panic().unwrap().text("hunter22"), "***");
    }

    #[test]
    fn outside_of_jobs_only_recent_source_credentials_are_remembered() {
        let secret_store = SecretStore::new(Rules::new(&Default::default()).unwrap());
        let refresh = secret_store.job(None);
        secret_store.learn_passing("the-token");
        for number in 0..100 {
            refresh.learn_credentials(&format!("https://me:password-{number:02}@host/repo"));
            refresh.learn_credentials("https://me:again-and-again@host/repo");
        }
        let text = "password-00 password-99 again-and-again the-token";
        assert_eq!(secret_store.masker().text(text), "password-00 *** *** ***");
        assert_eq!(refresh.masker().text(text), "password-00 *** *** ***");
    }
}
