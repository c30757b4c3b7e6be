//! Certificate authorities from a PEM file.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};

/// Why `Server.CaFile` cannot be used. Follows the path of the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthoritiesError {
    #[error("cannot be read as a PEM file: {0}")]
    Unreadable(String),
    #[error("contains no PEM certificate")]
    Empty,
    #[error("contains an invalid certificate: {0}")]
    Unusable(String),
}

/// Reads the certificate authorities in `Server.CaFile`. Validating the settings uses this too, to report all problems at
/// once.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, AuthoritiesError> {
    let unreadable = |error: pem::Error| match error {
        pem::Error::Io(error) => AuthoritiesError::Unreadable(error.to_string()),
        error => AuthoritiesError::Unreadable(error.to_string()),
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
        let added = roots.add(certificate.map_err(unreadable)?);
        added.map_err(|error| AuthoritiesError::Unusable(error.to_string()))?;
    }
    if roots.is_empty() { Err(AuthoritiesError::Empty) } else { Ok(roots) }
}
