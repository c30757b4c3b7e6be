//! The shared plugin cache around an Init ([`crate::engines::terraform::plugin_cache`]).
//!
//! An init that waits for the cache keeps its slot and its module. It logs every minute which module it waits for, and after
//! [`LONGEST_WAIT`] it runs without the cache, which only costs a download. A cancel ends the wait at once.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hawser_contract::Fault;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::TaskError;
use super::prepare_script::OpenModule;
use crate::base::blocking::blocking;
use crate::base::retry;
use crate::engines::environment::Environment;
use crate::engines::terraform::plugin_cache::{
    DIRECTORY_VARIABLE, KEEP_PACKAGES_VARIABLE, PluginCache, PluginCacheError,
};
use crate::engines::{EngineCommands, REMOVE};
use crate::script::{EngineCommand, ScriptError};

/// How often to log that Init is still waiting.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Most inits take seconds. One that takes longer than this hangs, or downloads so much that a second download hardly matters.
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);

/// Makes an Init use the shared plugin cache. Returns the lock that its supervisor must hold. If the environment
/// names another cache, or the shared one cannot be used, Init runs without it.
pub(super) async fn share(
    module: &OpenModule<'_>,
    environment: &mut Environment,
    work: &mut EngineCommands,
) -> Result<Option<Arc<File>>, TaskError> {
    let context = module.context;
    let settings = &context.settings;
    let Some(cache) = module.engine.plugin_cache(&settings.working_directory.working_directory) else {
        return Ok(None);
    };
    let value = |name: &str| environment.get(name).map(PathBuf::from);
    let wanted = settings.engine.plugin_cache_enabled && value(DIRECTORY_VARIABLE).is_none();
    let lock = match wanted {
        true => ready(module, &cache).await.map(Some),
        false => Ok(None),
    };
    let lock = lock.or_else(|unready| match unready {
        Unready::Cancelled => Err(TaskError::Cancelled),
        Unready::Unused(reason) => {
            context.warn(&format!("The plugin cache is not used: {reason}"));
            Ok(None)
        }
    })?;
    let Some(lock) = lock else {
        let data = module.directory.join(value("TF_DATA_DIR").unwrap_or_else(|| ".terraform".into()));
        cache.unlink(&data).map_err(|error| Fault::new(error.to_string()))?;
        return Ok(None);
    };
    environment.set(DIRECTORY_VARIABLE, cache.directory());
    environment.set(KEEP_PACKAGES_VARIABLE, "1");
    // Runs only after the engine has succeeded, and still under the lock.
    let unfinished = cache.unfinished_path();
    let unfinished = unfinished.to_str().ok_or_else(|| ScriptError::Path { path: unfinished.clone() });
    work.collect.push(EngineCommand::new([REMOVE, "-f", unfinished?]));
    Ok(Some(Arc::new(lock)))
}

#[derive(Debug)]
enum Unready {
    Cancelled,
    Unused(String),
}

impl<E: std::error::Error> From<E> for Unready {
    fn from(error: E) -> Self {
        Self::Unused(error.to_string())
    }
}

/// Waits for the lock, and checks the packages in the cache.
async fn ready(module: &OpenModule<'_>, cache: &PluginCache) -> Result<File, Unready> {
    let context = module.context;
    let lock = wait_for(
        || Ok(cache.try_lock(module.workspace.module())?),
        |waited| context.info(&still_waiting(&cache.holder(), waited)),
        &context.cancel,
    );
    let Some(lock) = lock.await? else {
        let minutes = LONGEST_WAIT.as_secs() / 60;
        let reason = format!("the init of {} has used it for more than {minutes} minutes", cache.holder());
        return Err(Unready::Unused(reason));
    };
    // Whole packages are read, and they are large.
    let (here, directory) = (cache.clone(), module.directory.clone());
    let checked = blocking(move || {
        let removed = here.begin()?;
        Ok::<_, PluginCacheError>((here.mismatch(&directory)?, removed))
    });
    let (mismatch, removed) = checked.await??;
    for package in removed {
        context.info(&format!("Removed {package} from the plugin cache, because its init did not complete"));
    }
    match mismatch {
        None => Ok(lock),
        Some(provider) => Err(Unready::Unused(format!(
            "the dependency lock file does not list the checksum of the cached {provider} (`terraform providers lock` adds \
             the checksums of other platforms)"
        ))),
    }
}

fn still_waiting(holder: &str, waited: Duration) -> String {
    let so_far = match waited.as_secs() / 60 {
        0 => String::new(),
        minutes => format!(" ({minutes} min so far)"),
    };
    format!("Waiting for the init of {holder}, which uses the shared plugin cache{so_far}")
}

/// Tries until there is a lock. `None` after [`LONGEST_WAIT`]. `say` logs the time that has passed.
async fn wait_for<L>(
    mut try_lock: impl FnMut() -> Result<Option<L>, Unready>,
    say: impl Fn(Duration),
    cancel: &CancellationToken,
) -> Result<Option<L>, Unready> {
    let since = Instant::now();
    let mut say_at = Duration::ZERO;
    loop {
        if let Some(lock) = try_lock()? {
            return Ok(Some(lock));
        }
        let waited = since.elapsed();
        if waited >= LONGEST_WAIT {
            return Ok(None);
        }
        if waited >= say_at {
            say(waited);
            say_at = waited + SAY_AGAIN;
        }
        if cancel.run_until_cancelled(tokio::time::sleep(retry::PLUGIN_CACHE)).await.is_none() {
            return Err(Unready::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waiting_is_logged_every_minute_and_ends_after_the_limit() {
        let said = RefCell::new(Vec::new());
        let say = |waited: Duration| said.borrow_mut().push(waited.as_secs() / 60);
        let never = || Ok(None::<()>);
        let waited = wait_for(never, say, &CancellationToken::new()).await;
        assert!(matches!(waited, Ok(None)));
        assert_eq!(*said.borrow(), [0, 1, 2, 3, 4]);
        assert!(!still_waiting("a/b/c", Duration::from_secs(59)).contains("so far"));
        assert!(still_waiting("a/b/c", Duration::from_secs(60)).ends_with("(1 min so far)"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_and_a_lock_end_the_wait() {
        let cancel = CancellationToken::new();
        let mut tries = 0;
        let third = || {
            tries += 1;
            Ok((tries == 3).then_some(()))
        };
        assert!(matches!(wait_for(third, |_| {}, &cancel).await, Ok(Some(()))));
        cancel.cancel();
        let waited = wait_for(|| Ok(None::<()>), |_| {}, &cancel).await;
        assert!(matches!(waited, Err(Unready::Cancelled)));
    }
}
