//! Digests of texts.

use sha2::{Digest as _, Sha256};

/// The SHA-256 by which hooks are compared, in lowercase hex.
pub fn fingerprint(text: &str) -> String {
    normalized_digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of a text without regard to its line ends and trailing white space.
pub fn normalized_digest(text: &[u8]) -> [u8; 32] {
    let mut unified = Vec::with_capacity(text.len());
    for (index, byte) in text.iter().enumerate() {
        if *byte == b'\r' && text.get(index + 1) == Some(&b'\n') {
            continue;
        }
        unified.push(*byte);
    }
    // Unicode knows more white space than ASCII does; text that is not UTF-8 has only the latter.
    let end = match std::str::from_utf8(&unified) {
        Ok(text) => text.trim_end().len(),
        Err(_) => unified.trim_ascii_end().len(),
    };
    Sha256::digest(&unified[..end]).into()
}
