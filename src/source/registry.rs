//! Module registries: the download endpoint names the repository that holds the module.
//!
//! `GET {sourceUrl}/{revision}/download` answers with the header `X-Terraform-Get`, whose value is an address in
//! Terraform's notation: `git::https://host/repo.git//modules/vpc?ref=v1.2.0`. The double slash behind the host
//! separates the repository from a folder inside it.

use std::time::Duration;

use reqwest::StatusCode;

use super::Location;
use super::submodules::is_on_disk;
use super::url::mask_url;

const HEADER: &str = "X-Terraform-Get";
/// The endpoint only looks up an address.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Parameters of Terraform's notation that are not for the Git server. The depth of a fetch is our business
/// and credentials are the host's own.
const NOT_FOR_THE_SERVER: [&str; 3] = ["ref", "depth", "sshkey"];

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("the registry address {url:?} with version {revision:?} makes no http(s) URL")]
    Address { url: String, revision: String },
    #[error("cannot ask the registry at {url}")]
    Request { url: String, source: reqwest::Error },
    #[error("the registry has no module at {url} (status 404): check the source URL and the version")]
    NotFound { url: String },
    #[error("the registry answered {url} with status {status}")]
    Status { url: String, status: StatusCode },
    #[error("the registry's answer for {url} has no readable {HEADER} header")]
    NoHeader { url: String },
    #[error(
        "the registry points to {address:?} for {url}, which is no Git repository: only Git is supported"
    )]
    NotGit { url: String, address: String },
    #[error(
        "the registry {registry} points to {address:?}, which is on this machine's disk: only a registry on this machine \
         may do that"
    )]
    OnDisk { registry: String, address: String },
}

/// A registry on another machine has no say in which of this machine's files are read, as a repository there has none
/// ([`super::submodules`]). One that runs here is the operator's own.
pub(super) fn check_place(registry: &str, address: &str) -> Result<(), RegistryError> {
    let host = url::Url::parse(registry.trim()).ok();
    let is_here = match host.as_ref().and_then(url::Url::host) {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if is_here || !is_on_disk(address) {
        return Ok(());
    }
    Err(RegistryError::OnDisk { registry: mask_url(registry), address: mask_url(address) })
}

/// What the registry answers, and who did when it was not the one that was asked: it may have sent us on.
pub(super) async fn download(
    http: &reqwest::Client,
    url: &str,
    revision: &str,
) -> Result<(Location, Option<String>), RegistryError> {
    let url = endpoint(url.trim(), revision.trim())?;
    let asked = url.clone();
    let shown = mask_url(url.as_str());
    let answer = http
        .get(url)
        .timeout(TIMEOUT)
        .send()
        .await
        // The error would repeat the URL with its credentials.
        .map_err(|source| RegistryError::Request { url: shown.clone(), source: source.without_url() })?;
    match answer.status() {
        status if status.is_success() => {}
        StatusCode::NOT_FOUND => return Err(RegistryError::NotFound { url: shown }),
        status => return Err(RegistryError::Status { url: shown, status }),
    }
    let Some(address) = answer.headers().get(HEADER).and_then(|value| value.to_str().ok()) else {
        return Err(RegistryError::NoHeader { url: shown });
    };
    let answered_by = (*answer.url() != asked).then(|| answer.url().to_string());
    match read_address(address.trim()) {
        Some(location) => Ok((location, answered_by)),
        None => Err(RegistryError::NotGit { url: shown, address: mask_url(address) }),
    }
}

fn endpoint(url: &str, revision: &str) -> Result<url::Url, RegistryError> {
    let error = || RegistryError::Address { url: mask_url(url), revision: revision.to_owned() };
    let mut endpoint = url::Url::parse(url).map_err(|_| error())?;
    // The URL library would drop these from the path without a word.
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

/// Takes an address in Terraform's notation apart; nothing when it is not one of a Git repository.
fn read_address(address: &str) -> Option<Location> {
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
    let kept: Vec<_> =
        parameters().filter(|(name, _)| !NOT_FOR_THE_SERVER.contains(&name.as_ref())).collect();
    let mut url = repository.to_owned();
    if !kept.is_empty() {
        url.push('?');
        url.push_str(&url::form_urlencoded::Serializer::new(String::new()).extend_pairs(kept).finish());
    }
    let subdirectory = subdirectory.map(|it| it.trim_matches('/').to_owned()).filter(|it| !it.is_empty());
    Some(Location { url, revision: revision.unwrap_or_default(), subdirectory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_built_from_url_and_version() {
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
    fn only_a_registry_on_this_machine_may_name_this_machines_files() {
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
            assert_eq!(check_place(registry, address).is_ok(), allowed, "{registry} {address}");
        }
    }

    #[test]
    fn addresses_in_terraforms_notation_are_taken_apart() {
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
