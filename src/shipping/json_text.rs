//! Escapes bytes for a JSON string, as many as fit.

/// Appends `bytes` as the contents of a JSON string, as far as they fit into `room` bytes. Returns how many bytes of the input
/// were taken. Invalid UTF-8 becomes U+FFFD.
pub(super) fn append_escaped(out: &mut String, bytes: &[u8], room: usize) -> usize {
    let limit = out.len() + room;
    if let Ok(text) = std::str::from_utf8(bytes) {
        return append_text(out, text, limit);
    }
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        let valid = append_text(out, chunk.valid(), limit);
        taken += valid;
        if valid < chunk.valid().len() {
            break;
        }
        if !chunk.invalid().is_empty() {
            if out.len() + char::REPLACEMENT_CHARACTER.len_utf8() > limit {
                break;
            }
            out.push(char::REPLACEMENT_CHARACTER);
            taken += chunk.invalid().len();
        }
    }
    taken
}

fn append_text(out: &mut String, text: &str, limit: usize) -> usize {
    let bytes = text.as_bytes();
    let mut done = 0;
    while done < bytes.len() {
        let plain = bytes[done..].iter().position(|byte| needs_escape(*byte)).unwrap_or(bytes.len() - done);
        let room = limit.saturating_sub(out.len());
        if plain > room {
            let cut = text.floor_char_boundary(done + room);
            out.push_str(&text[done..cut]);
            return cut;
        }
        out.push_str(&text[done..done + plain]);
        done += plain;
        let Some(byte) = bytes.get(done) else { break };
        let long;
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\t' => "\\t",
            b'\r' => "\\r",
            b'\n' => "\\n",
            // Terminal colors, which are frequent.
            b'\x1b' => "\\u001b",
            control => {
                long = format!("\\u{control:04x}");
                &long
            }
        };
        if out.len() + escape.len() > limit {
            return done;
        }
        out.push_str(escape);
        done += 1;
    }
    done
}

fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_escaped_and_split_between_characters_without_loss(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            text in "\\PC{0,80}",
            room in 6_usize..60,
        ) {
            for input in [bytes.as_slice(), text.as_bytes(), &[text.as_bytes(), &bytes].concat()] {
                let mut whole = String::new();
                let mut rest = input;
                while !rest.is_empty() {
                    let mut out = String::new();
                    let taken = append_escaped(&mut out, rest, room);
                    prop_assert!(taken > 0 && out.len() <= room);
                    whole.push_str(&serde_json::from_str::<String>(&format!("\"{out}\"")).unwrap());
                    rest = &rest[taken..];
                }
                prop_assert_eq!(whole, String::from_utf8_lossy(input));
            }
        }
    }
}
