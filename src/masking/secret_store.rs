//! The secrets that are known now, and who must not say them.
//!
//! Compiling takes a moment, so what was compiled is kept until something changes. While it takes that moment nobody is
//! kept from learning: only whoever wants the same masker waits. Nothing is logged while a lock is held: the runtime log
//! is masked by this very store.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use tracing::{error, warn};
use uuid::Uuid;

use super::url_credentials::of_source;
use super::{Masker, Rules};

/// How many tokens of the runner are known at a time: those of the connection, of its redirects and of some before it. As
/// many credentials of sources are known besides. All of them are in every automaton.
const PASSING: usize = 12;
/// A panic that finds the masker in use looks again so often, a moment later.
const PATIENCE: usize = 100;

/// All secrets of the process. Cheap to clone; every clone is the same store.
#[derive(Clone)]
pub struct SecretStore(Arc<StoreInner>);

struct StoreInner {
    rules: Rules,
    own: Mutex<Shelf>,
    jobs: Mutex<HashMap<Uuid, Weak<StoredJob>>>,
    /// Of everything, for what belongs to no job.
    compiled: Compiled,
    /// Of the runner's own secrets, for steps that belong to no job.
    compiled_own: Compiled,
    /// Goes up with every secret that is learnt and every job that is gone.
    changes: Arc<AtomicU64>,
    /// That everything is masked has been said.
    said: AtomicBool,
    /// That not all disguises are looked for has been said.
    said_less: AtomicBool,
}

/// Some secrets, and how often they have changed.
#[derive(Default)]
struct Shelf {
    secrets: BTreeSet<String>,
    /// Tokens, which are replaced again and again.
    tokens: Passing,
    /// Credentials of sources outside of jobs. However many a server sends, they take no place from a token.
    sources: Passing,
    version: u64,
    /// The secrets are not all known, and this is why.
    unknown: Option<String>,
}

/// The last [`PASSING`] of some secrets, the latest last.
#[derive(Default)]
struct Passing(VecDeque<String>);

impl Passing {
    /// Says whether it is new. One that comes again is as young as a new one.
    fn add(&mut self, secret: &str) -> bool {
        if let Some(known) = self.0.iter().position(|known| known == secret) {
            if let Some(again) = self.0.remove(known) {
                self.0.push_back(again);
            }
            return false;
        }
        self.0.push_back(secret.to_owned());
        if self.0.len() > PASSING {
            self.0.pop_front();
        }
        true
    }
}

/// The secrets of one job, for as long as somebody holds this.
#[derive(Clone)]
pub struct JobSecrets {
    secret_store: SecretStore,
    /// None outside of any job.
    job: Option<Arc<StoredJob>>,
}

struct StoredJob {
    shelf: Mutex<Shelf>,
    compiled: Compiled,
    changes: Arc<AtomicU64>,
}

impl Drop for StoredJob {
    fn drop(&mut self) {
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// A masker, and the versions of what it was compiled from.
#[derive(Default)]
struct Compiled(Mutex<Option<(Versions, Arc<Masker>)>>);

/// Of the runner's own secrets and of the job's.
type Versions = (u64, u64);

impl Compiled {
    fn get(&self, versions: Versions, compile: impl FnOnce() -> Masker) -> Arc<Masker> {
        let mut kept = locked(&self.0);
        if let Some((of, masker)) = &*kept
            && *of == versions
        {
            return Arc::clone(masker);
        }
        // The old one goes before the new one is built: both at once would take twice the memory.
        *kept = None;
        let masker = Arc::new(compile());
        *kept = Some((versions, Arc::clone(&masker)));
        masker
    }

    /// Whether nobody is compiling.
    fn is_free(&self) -> bool {
        !matches!(self.0.try_lock(), Err(TryLockError::WouldBlock))
    }
}

impl SecretStore {
    pub fn new(rules: Rules) -> Self {
        let secrets: BTreeSet<_> = rules.values().map(str::to_owned).collect();
        let own = Mutex::new(Shelf { secrets, ..Shelf::default() });
        Self(Arc::new(StoreInner {
            rules,
            own,
            jobs: Mutex::default(),
            compiled: Compiled::default(),
            compiled_own: Compiled::default(),
            changes: Arc::default(),
            said: AtomicBool::new(false),
            said_less: AtomicBool::new(false),
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
        self.pass(secret, |own| &mut own.tokens);
    }

    fn pass(&self, secret: &str, queue: impl FnOnce(&mut Shelf) -> &mut Passing) {
        let mut own = locked(&self.0.own);
        if secret.len() >= self.0.rules.minimum_length && queue(&mut own).add(secret) {
            own.version += 1;
            self.0.changes.fetch_add(1, Ordering::Release);
        }
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
    pub fn masker(&self) -> Arc<Masker> {
        // Looked at before the secrets are: what is learnt meanwhile counts at the next call at the latest.
        let changes = self.0.changes.load(Ordering::Acquire);
        self.0.compiled.get((changes, 0), || {
            let jobs: Vec<Arc<StoredJob>> = locked(&self.0.jobs).values().filter_map(Weak::upgrade).collect();
            let mut secrets: BTreeSet<_> = locked(&self.0.own).texts().map(str::to_owned).collect();
            for job in &jobs {
                secrets.extend(locked(&job.shelf).secrets.iter().cloned());
            }
            Masker::new(secrets.iter().map(String::as_str), &self.0.rules)
        })
    }

    /// The same for a thread that panics: it may be the one that is compiling, and would wait for itself. None when the
    /// masker stays in use.
    pub(crate) fn masker_in_a_panic(&self) -> Option<Arc<Masker>> {
        for _ in 0..PATIENCE {
            if self.0.compiled.is_free() {
                return Some(self.masker());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// The secrets of a job, shared by all who ask for them at the same time.
    pub fn job(&self, job_id: Option<Uuid>) -> JobSecrets {
        let job = job_id.map(|job_id| {
            let mut jobs = locked(&self.0.jobs);
            jobs.retain(|_, job| job.strong_count() > 0);
            let known = jobs.get(&job_id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let job = Arc::new(StoredJob {
                    shelf: Mutex::default(),
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
            .learn_all(self.job.as_ref().map_or(&self.secret_store.0.own, |job| &job.shelf), secrets);
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
    pub fn masker(&self) -> Arc<Masker> {
        let inner = &self.secret_store.0;
        // Looked at before the secrets are, as in the store's own. No lock but that of the masker is held while it is
        // compiled.
        let own_version = locked(&inner.own).version;
        let own = || locked(&inner.own).texts().map(str::to_owned).collect::<BTreeSet<_>>();
        let masker = match &self.job {
            None => inner
                .compiled_own
                .get((own_version, 0), || Masker::new(own().iter().map(String::as_str), &inner.rules)),
            Some(job) => {
                let version = locked(&job.shelf).version;
                job.compiled.get((own_version, version), || {
                    let mut secrets = own();
                    let shelf = locked(&job.shelf);
                    if let Some(reason) = &shelf.unknown {
                        return Masker::of_everything(reason);
                    }
                    secrets.extend(shelf.texts().map(str::to_owned));
                    drop(shelf);
                    Masker::new(secrets.iter().map(String::as_str), &inner.rules)
                })
            }
        };
        if let Some(reason) = masker.masks_everything()
            && !inner.said.swap(true, Ordering::Relaxed)
        {
            error!("all lines of a job are masked, since its secrets cannot be told from the rest: {reason}");
        }
        if masker.is_lessened() && !inner.said_less.swap(true, Ordering::Relaxed) {
            warn!(
                "a job has so many secrets, or such long ones, that not all disguises of them are masked: rare ones, such \
                 as folded over lines, and perhaps of long secrets all but the plain text, may be missed"
            );
        }
        masker
    }

    /// Adds the credentials in the URL of a source, such as one that was found on the way, and returns them. Outside of any
    /// job they are known for a while, as tokens are: there may be new ones each time.
    pub(crate) fn learn_credentials(&self, url: &str) -> Vec<String> {
        let rules = &self.secret_store.0.rules;
        let found = of_source(url, rules);
        let found: BTreeSet<&str> = found.iter().filter_map(|text| rules.secret_in(text)).collect();
        let found: Vec<String> = found.into_iter().map(str::to_owned).collect();
        match self.job {
            Some(_) => self.learn(found.iter().map(String::as_str)),
            None => found.iter().for_each(|secret| self.secret_store.pass(secret, |own| &mut own.sources)),
        }
        found
    }
}

impl Shelf {
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
    /// Without the secrets.
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
    fn a_thread_that_panics_while_it_compiles_does_not_wait_for_itself() {
        let secret_store = SecretStore::new(Rules::new(&Default::default()).unwrap());
        secret_store.learn("hunter22");
        let compiling = locked(&secret_store.0.compiled.0);
        assert!(secret_store.masker_in_a_panic().is_none());
        drop(compiling);
        assert_eq!(secret_store.masker_in_a_panic().unwrap().text("hunter22"), "***");
    }

    #[test]
    fn of_sources_outside_of_jobs_the_latest_credentials_are_known_and_not_all_that_ever_were() {
        let secret_store = SecretStore::new(Rules::new(&Default::default()).unwrap());
        let refresh = secret_store.job(None);
        secret_store.learn_passing("the-token");
        for number in 0..100 {
            refresh.learn_credentials(&format!("https://me:password-{number:02}@host/repo"));
            refresh.learn_credentials("https://me:again-and-again@host/repo");
        }
        let said = "password-00 password-99 again-and-again the-token";
        assert_eq!(secret_store.masker().text(said), "password-00 *** *** ***");
        assert_eq!(refresh.masker().text(said), "password-00 *** *** ***");
    }
}
