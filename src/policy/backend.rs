//! Backend settings: `Policy.AllowedBackendSettings`.
//!
//! A setting is judged as the engine gets it: `name=value`, cut at the first equals sign, or the name of a file. Some are code
//! (`shared_config_files` of the S3 backend names a file that names a program), some say where a state is read and written,
//! and `${NAME}` in a value is a variable of the host.

use hawser_contract::requests::Init;
use hawser_contract::{Engine, PulumiFlag};

use crate::engines::flags::value_of;
use crate::engines::terraform;

/// What an Init would tell its engine about the backend. For Pulumi that is where it logs in.
pub(super) fn given(init: &Init) -> Vec<String> {
    if init.engine == Engine::Pulumi {
        let url = value_of(&init.backend_configuration.pulumi_flags.known, PulumiFlag::CloudUrl);
        return url.into_iter().map(|url| format!("CloudUrl={url}")).collect();
    }
    terraform::backend_settings(&init.backend_configuration)
}

/// A setting as it is told of: values may be secret.
pub(super) fn shown(setting: &str) -> String {
    match setting.split_once('=') {
        Some((name, _)) => format!("the backend setting {name:?}"),
        None => format!("the file {setting:?} of backend settings"),
    }
}
