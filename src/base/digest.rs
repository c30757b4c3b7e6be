//! Digests of text, and their encoding.

use std::fmt::Write as _;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

/// Lowercase hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The SHA-256 of everything that is left to read, in lowercase hex.
pub fn sha256_of(mut file: impl Read) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash)?;
    Ok(hex(&hash.finalize()))
}

/// The SHA-256 by which hooks are compared, in lowercase hex.
pub fn fingerprint(text: &str) -> String {
    hex(&normalized_digest(text.as_bytes()))
}

/// The SHA-256 of a text, ignoring the style of its line ends and trailing whitespace.
pub fn normalized_digest(text: &[u8]) -> [u8; 32] {
    let mut unified = Vec::with_capacity(text.len());
    for (index, byte) in text.iter().enumerate() {
        if *byte == b'\r' && text.get(index + 1) == Some(&b'\n') {
            continue;
        }
        unified.push(*byte);
    }
    // Unicode defines more whitespace than ASCII. Text that is not UTF-8 is trimmed as ASCII.
    let end = match std::str::from_utf8(&unified) {
        Ok(text) => text.trim_end().len(),
        Err(_) => unified.trim_ascii_end().len(),
    };
    Sha256::digest(&unified[..end]).into()
}
