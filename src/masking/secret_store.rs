//! The known secrets of the runner and its jobs.
//!
//! Compiling a masker takes time, so it is cached until the secrets change. Secrets can be added during a compilation; only
//! callers that need the same masker wait. Nothing is logged while a lock is held, because this store masks the runtime log.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError, Weak};
use std::time::Duration;

use tracing::{error, warn};
use uuid::Uuid;

use super::url_credentials::of_source;
use super::{Masker, Rules};

/// How many tokens of the runner are remembered: those of the connection, its redirects, and some earlier ones. All of them
/// are in every automaton.
const MAX_RECENT: usize = 12;
/// How often a panic hook checks whether the masker is free.
const PANIC_ATTEMPTS: usize = 100;

/// These are logged once, because a job asks for its masker often.
static EVERYTHING_LOGGED: Once = Once::new();
static REDUCED_LOGGED: Once = Once::new();

/// All secrets of the process. Cheap to clone; every clone is the same store.
#[derive(Clone)]
pub struct SecretStore(Arc<StoreInner>);

struct StoreInner {
    rules: Rules,
    own: Mutex<SecretSet>,
    jobs: Mutex<HashMap<Uuid, Weak<StoredJob>>>,
    /// Of all secrets, for text that belongs to no job.
    compiled: Compiled,
    /// Incremented with every new secret and every dropped job.
    changes: Arc<AtomicU64>,
}

/// Secrets with a version that changes with them.
#[derive(Default)]
struct SecretSet {
    secrets: BTreeSet<String>,
    /// The [`MAX_RECENT`] most recent tokens, oldest first.
    tokens: VecDeque<String>,
    version: u64,
    /// Why the secrets are incomplete, if they are.
    unknown: Option<String>,
}

/// A handle to the secrets of one job, which are dropped with the last handle.
#[derive(Clone)]
pub struct JobSecrets {
    secret_store: SecretStore,
    job: Arc<StoredJob>,
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
            changes: Arc::default(),
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
    pub fn learn_passing(&self, token: &str) {
        let mut own = locked(&self.0.own);
        let known = own.tokens.iter().position(|known| known == token);
        let known = known.and_then(|at| own.tokens.remove(at)).is_some();
        own.tokens.push_back(token.to_owned());
        if own.tokens.len() > MAX_RECENT {
            own.tokens.pop_front();
        }
        if !known {
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

    /// Returns the secrets of a job, shared by all current handles. A step without a job has its own.
    pub fn job(&self, job_id: Option<Uuid>) -> JobSecrets {
        let job_id = job_id.unwrap_or_else(Uuid::new_v4);
        let mut jobs = locked(&self.0.jobs);
        jobs.retain(|_, job| job.strong_count() > 0);
        let known = jobs.get(&job_id).and_then(Weak::upgrade);
        let job = known.unwrap_or_else(|| {
            let changes = Arc::clone(&self.0.changes);
            let job = Arc::new(StoredJob { set: Mutex::default(), compiled: Compiled::default(), changes });
            jobs.insert(job_id, Arc::downgrade(&job));
            job
        });
        JobSecrets { secret_store: self.clone(), job }
    }
}

impl JobSecrets {
    /// Adds secrets of this job.
    pub fn learn<'a>(&self, secrets: impl IntoIterator<Item = &'a str>) {
        self.secret_store.learn_all(&self.job.set, secrets);
    }

    /// Marks the secrets of this job as incomplete, so that all its text is masked.
    pub fn hide_everything(&self, reason: &str) {
        let mut set = locked(&self.job.set);
        set.unknown = Some(reason.to_owned());
        set.version += 1;
    }

    /// Masks the secrets known now. Get a new masker when secrets may have been added.
    pub fn masker(&self) -> Arc<Masker> {
        let inner = &self.secret_store.0;
        // Read before the secrets, as in `SecretStore::masker`. Only the lock of the masker is held during the compilation.
        let versions = (locked(&inner.own).version, locked(&self.job.set).version);
        let masker = self.job.compiled.get(versions, || {
            let mut secrets: BTreeSet<_> = locked(&inner.own).texts().map(str::to_owned).collect();
            let set = locked(&self.job.set);
            if let Some(reason) = &set.unknown {
                return Masker::of_everything(reason);
            }
            secrets.extend(set.texts().map(str::to_owned));
            drop(set);
            Masker::new(secrets.iter().map(String::as_str), &inner.rules)
        });
        if let Some(reason) = masker.masks_everything() {
            EVERYTHING_LOGGED.call_once(|| error!(reason, "masking all lines of a job"));
        }
        if masker.is_reduced() {
            REDUCED_LOGGED.call_once(|| {
                warn!(
                    "masking a job's secrets only in their common encodings, because they are too many or too long; \
                     long secrets may be masked only as plain text"
                );
            });
        }
        masker
    }

    /// Adds the credentials in the URL of a source and returns them.
    pub(crate) fn learn_credentials(&self, url: &str) -> Vec<String> {
        let rules = &self.secret_store.0.rules;
        let credentials = of_source(url, rules);
        let secrets: BTreeSet<&str> = credentials.iter().filter_map(|text| rules.secret_in(text)).collect();
        self.learn(secrets.iter().copied());
        secrets.into_iter().map(str::to_owned).collect()
    }
}

impl SecretSet {
    fn texts(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().chain(&self.tokens).map(String::as_str)
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
    fn only_recent_tokens_are_remembered() {
        let secret_store = SecretStore::new(Rules::new(&Default::default()).unwrap());
        for number in 0..100 {
            secret_store.learn_passing(&format!("the-token-{number:02}"));
            secret_store.learn_passing("again-and-again");
        }
        let masker = secret_store.masker();
        assert_eq!(masker.text("the-token-00 the-token-99 again-and-again"), "the-token-00 *** ***");
    }

    #[test]
    fn credentials_of_a_step_without_a_job_are_masked_until_the_step_ends() {
        let secret_store = SecretStore::new(Rules::new(&Default::default()).unwrap());
        let refresh = secret_store.job(None);
        refresh.learn_credentials("https://me:password-1@host/repo");
        assert_eq!(refresh.masker().text("password-1"), "***");
        assert_eq!(secret_store.masker().text("password-1"), "***");
        assert_eq!(secret_store.job(None).masker().text("password-1"), "password-1");
        drop(refresh);
        assert_eq!(secret_store.masker().text("password-1"), "password-1");
    }
}
