//! Module registries: the download endpoint names the repository of a module.
//!
//! `GET {sourceUrl}/{revision}/download` answers with the header `X-Terraform-Get`, an address in Terraform's notation:
//! `git::https://host/repo.git//modules/vpc?ref=v1.2.0`. The double slash after the host separates the repository from a
//! folder inside it.

use std::time::{Duration, Instant};

use reqwest::StatusCode;

use super::SourceError;
use crate::base::git_url::{GitUrl, mask_url};

const HEADER: &str = "X-Terraform-Get";
/// Includes all redirects. The endpoint only looks up an address.
const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 10;
/// Parameters of Terraform's notation that are not for the Git server. The runner decides the depth of a fetch, and the
/// credentials are the host's own.
const NOT_FOR_THE_SERVER: [&str; 3] = ["ref", "depth", "sshkey"];

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("the registry address {url:?} with version {revision:?} is not an http or https URL")]
    Address { url: String, revision: String },
    #[error("failed to reach the registry at {url}")]
    Request { url: String, source: reqwest::Error },
    #[error("the registry has no module at {url} (status 404): check the source URL and the version")]
    NotFound { url: String },
    #[error("the registry returned status {status} for {url}")]
    Status { url: String, status: StatusCode },
    #[error("too many redirects from the registry ({MAX_REDIRECTS}), the last one from {url}")]
    Redirects { url: String },
    #[error(
        "the registry at {url} redirects to {location:?}, but only https is allowed (http only from http)"
    )]
    UnsafeRedirect { url: String, location: String },
    #[error("the registry returned no valid {HEADER} header for {url}")]
    NoHeader { url: String },
    #[error(
        "the registry returned {address:?} for {url}, which is not a Git repository: only Git is supported"
    )]
    NotGit { url: String, address: String },
    #[error(
        "the registry {registry} returned {address:?}, which is on this machine's disk: only a registry on this machine \
         may do that"
    )]
    OnDisk { registry: String, address: String },
}

/// A module's address in Terraform's notation, split.
pub(super) struct ModuleAddress {
    /// Not validated yet.
    pub(super) url: String,
    pub(super) revision: String,
    pub(super) subdirectory: Option<String>,
}

/// A registry on another machine must not choose which of this machine's files are read, and neither must a repository
/// there ([`super::submodules`]). A registry on this machine is the operator's own.
pub(super) fn check_disk_access(registry: &str, address: &GitUrl) -> Result<(), RegistryError> {
    let host = url::Url::parse(registry.trim()).ok();
    let is_local = match host.as_ref().and_then(url::Url::host) {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if is_local || !address.is_on_disk() {
        return Ok(());
    }
    Err(RegistryError::OnDisk { registry: mask_url(registry), address: address.to_string() })
}

/// Returns the registry's answer, and the URLs of all redirects. `check` is called before a redirect is followed; `http` must
/// not follow any.
pub(super) async fn download(
    http: &reqwest::Client,
    url: &str,
    revision: &str,
    check: impl Fn(&str) -> Result<(), SourceError>,
) -> Result<(ModuleAddress, Vec<String>), SourceError> {
    let mut url = endpoint(url.trim(), revision.trim())?;
    let deadline = Instant::now() + TIMEOUT;
    let mut redirects = Vec::new();
    let (answer, shown) = loop {
        let shown = mask_url(url.as_str());
        let answer = http
            .get(url.clone())
            .timeout(deadline.saturating_duration_since(Instant::now()))
            .send()
            .await
            // The error contains the URL with its credentials.
            .map_err(|source| RegistryError::Request { url: shown.clone(), source: source.without_url() })?;
        let location = answer.headers().get(reqwest::header::LOCATION).and_then(|value| value.to_str().ok());
        let next = match (answer.status().as_u16(), location) {
            (301 | 302 | 303 | 307 | 308, Some(location)) => redirect(&url, location)?,
            _ => break (answer, shown),
        };
        if redirects.len() == MAX_REDIRECTS {
            return Err(RegistryError::Redirects { url: shown }.into());
        }
        check(next.as_str())?;
        redirects.push(next.to_string());
        url = next;
    };
    Ok((module_address(&answer, shown)?, redirects))
}

/// The target of a redirect. A login is only sent to the server it was given for, and https never becomes http.
fn redirect(from: &url::Url, location: &str) -> Result<url::Url, RegistryError> {
    let next = from.join(location).ok();
    let is_allowed =
        |next: &url::Url| next.scheme() == "https" || next.scheme() == "http" && from.scheme() == "http";
    let Some(mut next) = next.filter(is_allowed) else {
        let (url, location) = (mask_url(from.as_str()), mask_url(location));
        return Err(RegistryError::UnsafeRedirect { url, location });
    };
    if next.username().is_empty() && next.password().is_none() && next.origin() == from.origin() {
        let _ = next.set_username(from.username());
        let _ = next.set_password(from.password());
    }
    Ok(next)
}

fn module_address(answer: &reqwest::Response, shown: String) -> Result<ModuleAddress, RegistryError> {
    match answer.status() {
        status if status.is_success() => {}
        StatusCode::NOT_FOUND => return Err(RegistryError::NotFound { url: shown }),
        status => return Err(RegistryError::Status { url: shown, status }),
    }
    let Some(address) = answer.headers().get(HEADER).and_then(|value| value.to_str().ok()) else {
        return Err(RegistryError::NoHeader { url: shown });
    };
    read_address(address.trim())
        .ok_or_else(|| RegistryError::NotGit { url: shown, address: mask_url(address) })
}

fn endpoint(url: &str, revision: &str) -> Result<url::Url, RegistryError> {
    let error = || RegistryError::Address { url: mask_url(url), revision: revision.to_owned() };
    let mut endpoint = url::Url::parse(url).map_err(|_| error())?;
    // `push` ignores `.` and `..`.
    if !matches!(endpoint.scheme(), "http" | "https") || matches!(revision, "." | "..") {
        return Err(error());
    }
    let mut path = endpoint.path_segments_mut().map_err(|()| error())?;
    path.pop_if_empty();
    if !revision.is_empty() {
        path.push(revision);
    }
    path.push("download");
    drop(path);
    Ok(endpoint)
}

/// Splits an address in Terraform's notation; `None` if it is not the address of a Git repository.
fn read_address(address: &str) -> Option<ModuleAddress> {
    let (forced, address) = match address.strip_prefix("git::") {
        Some(rest) => (true, rest),
        None => (false, address),
    };
    let (address, query) = address.split_once('?').unwrap_or((address, ""));
    let after_scheme = address.find("://").map_or(0, |at| at + 3);
    let (repository, subdirectory) = match address[after_scheme..].find("//") {
        Some(at) => (&address[..after_scheme + at], Some(&address[after_scheme + at + 2..])),
        None => (address, None),
    };
    let is_scp = after_scheme == 0 && repository.contains('@') && repository.contains(':');
    if !(forced || is_scp || repository.starts_with("ssh://") || repository.ends_with(".git")) {
        return None;
    }
    let parameters = || url::form_urlencoded::parse(query.as_bytes());
    let revision = parameters().find(|(name, _)| name == "ref").map(|(_, value)| value.into_owned());
    let remaining: Vec<_> =
        parameters().filter(|(name, _)| !NOT_FOR_THE_SERVER.contains(&name.as_ref())).collect();
    let mut url = repository.to_owned();
    if !remaining.is_empty() {
        url.push('?');
        url.push_str(&url::form_urlencoded::Serializer::new(String::new()).extend_pairs(remaining).finish());
    }
    let subdirectory = subdirectory.map(|it| it.trim_matches('/').to_owned()).filter(|it| !it.is_empty());
    Some(ModuleAddress { url, revision: revision.unwrap_or_default(), subdirectory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_consists_of_url_and_version() {
        let built = |url: &str, revision: &str| endpoint(url, revision).map(String::from);
        let base = "https://registry.example/v1/modules/org/vpc/aws";
        assert_eq!(built(base, "1.2.0").unwrap(), format!("{base}/1.2.0/download"));
        assert_eq!(built(&format!("{base}/"), "").unwrap(), format!("{base}/download"));
        assert_eq!(built(base, "a/../b?c").unwrap(), format!("{base}/a%2F..%2Fb%3Fc/download"));
        built(base, "..").unwrap_err();
        built("org/vpc/aws", "1.0.0").unwrap_err();
        built("file:///etc", "1.0.0").unwrap_err();
    }

    #[test]
    fn a_redirect_keeps_the_login_on_its_server_and_never_leaves_https() {
        for (from, location, expected) in [
            ("https://u:p@h/a/b", "c", Some("https://u:p@h/a/c")),
            ("https://u:p@h/a", "https://h/c", Some("https://u:p@h/c")),
            ("https://u:p@h/a", "https://h:444/c", Some("https://h:444/c")),
            ("https://u:p@h/a", "//other/c", Some("https://other/c")),
            ("http://u:p@h/a", "https://h/c", Some("https://h/c")),
            ("http://h/a", "http://other/c", Some("http://other/c")),
            ("https://h/a", "http://h/c", None),
            ("http://h/a", "file:///etc/passwd", None),
            ("http://h/a", "http://", None),
        ] {
            let next = redirect(&from.parse().unwrap(), location).ok().map(String::from);
            assert_eq!(next.as_deref(), expected, "{from} {location}");
        }
    }

    #[test]
    fn only_a_registry_on_this_machine_may_name_files_on_its_disk() {
        for (registry, address, allowed) in [
            ("https://registry.example/m", "https://host/r", true),
            ("https://registry.example/m", "git@host:r", true),
            ("https://registry.example/m", "file:///srv/r", false),
            ("https://registry.example/m", "FILE:///srv/r", false),
            ("https://registry.example/m", "/srv/r", false),
            ("http://10.0.0.1/m", "/srv/r", false),
            ("https://localhost.example/m", "/srv/r", false),
            ("not a url", "/srv/r", false),
            ("http://localhost:8080/m", "/srv/r", true),
            ("http://127.0.0.9/m", "file:///srv/r", true),
            ("http://[::1]/m", "file:///srv/r", true),
        ] {
            let url = GitUrl::parse(address).unwrap();
            assert_eq!(check_disk_access(registry, &url).is_ok(), allowed, "{registry} {address}");
        }
    }

    #[test]
    fn addresses_in_terraforms_notation_are_split() {
        let read = |address| {
            read_address(address).map(|it| (it.url, it.revision, it.subdirectory.unwrap_or_default()))
        };
        for (address, url, revision, subdirectory) in [
            ("git::https://host/repo?ref=abc", "https://host/repo", "abc", ""),
            (
                "git::https://host/repo.git//modules/vpc?ref=v1.0",
                "https://host/repo.git",
                "v1.0",
                "modules/vpc",
            ),
            ("git::https://host/repo//a//b/?ref=x%2Fy&depth=1", "https://host/repo", "x/y", "a//b"),
            ("git::https://host/repo?api=1&ref=x", "https://host/repo?api=1", "x", ""),
            ("git::ssh://git@host/repo.git", "ssh://git@host/repo.git", "", ""),
            ("git::git@host:org/repo.git//sub?ref=v1&sshkey=k", "git@host:org/repo.git", "v1", "sub"),
            ("git@host:org/repo.git?ref=v1", "git@host:org/repo.git", "v1", ""),
            ("git::file:///srv/repo//sub?ref=main", "file:///srv/repo", "main", "sub"),
            ("https://host/repo.git?ref=v1", "https://host/repo.git", "v1", ""),
        ] {
            assert_eq!(read(address), Some((url.into(), revision.into(), subdirectory.into())), "{address}");
        }
        for address in
            ["https://host/module.tar.gz", "./x.zip", "s3::https://bucket/x", "", "hg::https://h/r"]
        {
            assert_eq!(read(address), None, "{address}");
        }
    }
}
