//! The shared plugin cache around an Init ([`crate::engine::plugin_cache`]).

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Engine, Fault};
use crate::engine::environment::Environment;
use crate::engine::plugin_cache::{
    DIRECTORY_VARIABLE, KEEP_PACKAGES_VARIABLE, PluginCache, PluginCacheError, is_configured,
};
use crate::engine::{EngineError, Work};
use crate::hooks::{Command, ScriptError};

use super::TaskError;
use super::script::Module;

/// How often a lock that another init holds is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Lets an Init use the shared plugin cache, and returns the lock that its supervisor must hold. An init whose
/// environment or configuration has a cache already is left alone; one whose cache cannot be used goes without.
pub(super) async fn share(
    module: &Module<'_>,
    engine: Engine,
    environment: &mut Environment,
    work: &mut Work,
) -> Result<Option<Arc<File>>, TaskError> {
    let context = module.context;
    let settings = &context.settings;
    let Some(cache) = PluginCache::of(engine, &settings.working_directory.working_directory) else {
        return Ok(None);
    };
    let value = |name: &str| environment.get(name).map(PathBuf::from);
    let wanted =
        settings.engine.plugin_cache_enabled && value(DIRECTORY_VARIABLE).is_none() && !is_configured(value);
    let lock = match wanted {
        true => ready(module, &cache).await,
        false => Ok(None),
    };
    let lock = lock.or_else(|unready| match unready {
        Unready::Cancelled => Err(TaskError::Cancelled),
        Unready::Broken(error) => {
            context.warn(&format!("The plugin cache is not used: {error}"));
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
    work.collect.push(Command::new(["rm", "-f", unfinished.map_err(EngineError::from)?]));
    Ok(Some(Arc::new(lock)))
}

enum Unready {
    Cancelled,
    Broken(PluginCacheError),
}

impl From<PluginCacheError> for Unready {
    fn from(error: PluginCacheError) -> Self {
        Self::Broken(error)
    }
}

/// Waits for the lock and sees to what lies in the cache. None when this module had better not use it.
async fn ready(module: &Module<'_>, cache: &PluginCache) -> Result<Option<File>, Unready> {
    let context = module.context;
    let mut said = false;
    let lock = loop {
        if let Some(lock) = cache.try_lock(module.workspace.module())? {
            break lock;
        }
        if !std::mem::replace(&mut said, true) {
            context.info(&format!(
                "Waits for the init of {}, which uses the shared plugin cache",
                cache.holder()
            ));
        }
        if context.cancel.run_until_cancelled(tokio::time::sleep(LOOK_AGAIN)).await.is_none() {
            return Err(Unready::Cancelled);
        }
    };
    // Packages are read whole, and they are large.
    let (here, directory) = (cache.clone(), module.directory.clone());
    let looked = tokio::task::spawn_blocking(move || {
        let removed = here.begin()?;
        Ok::<_, PluginCacheError>((here.mismatch(&directory)?, removed))
    });
    let Ok(looked) = looked.await else { return Ok(None) };
    let (mismatch, removed) = looked?;
    for package in removed {
        context.info(&format!(
            "Removed {package} from the plugin cache: the init that brought it did not complete"
        ));
    }
    if let Some(provider) = mismatch {
        context.info(&format!(
            "The plugin cache is not used: the dependency lock file does not list the checksum of {provider} as it is \
             there (`terraform providers lock` adds the checksums of further platforms)"
        ));
        return Ok(None);
    }
    Ok(Some(lock))
}
