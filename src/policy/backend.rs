//! Backend settings: `Policy.AllowedBackendSettings`.
//!
//! A setting is checked in the form that the engine gets: `name=value`, split at the first equals sign, or the name of a file.
//! Some settings lead to code (`shared_config_files` of the S3 backend names a file that names a program), some choose where
//! the state is stored, and `${NAME}` in a value is a variable of the host.

/// Describes a setting without its value, which may be secret.
pub(super) fn without_value(setting: &str) -> String {
    match setting.split_once('=') {
        Some((name, _)) => format!("the backend setting {name:?}"),
        None => format!("the file {setting:?} of backend settings"),
    }
}
