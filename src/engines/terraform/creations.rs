//! The resources that an apply created, by what it printed. The state of an apply that was killed may not have them.
//!
//! ```text
//! aws_vpc.main: Creating...
//! aws_vpc.main: Creation complete after 1s [id=vpc-0b8]
//! ```

use std::collections::BTreeMap;

use crate::step::{FoundRecord, RecordReader, StepFolder, Stream};

/// How many resources a message names.
const NAMED: usize = 20;
/// A longer id is left out. It is not cut, because half of a secret would not be masked.
const LONGEST_ID: usize = 200;

/// Resources whose creation was started, in order, each with its id once it was complete.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Creations {
    addresses: Vec<String>,
    /// By the position of the address.
    ids: BTreeMap<usize, String>,
}

impl Creations {
    /// Reads the whole log of a step, because long applies print many lines.
    pub(super) fn of(folder: &StepFolder) -> Self {
        let mut creations = Self::default();
        let mut reader = RecordReader::new(folder.output_path(), 0);
        while let Ok(Some(FoundRecord { record, next, .. })) = reader.peek(true) {
            let text = String::from_utf8_lossy(record.text);
            if record.stream == Stream::Stdout && text.contains(": Creati") {
                creations.read(&console::strip_ansi_codes(&text));
            }
            reader.pass(next);
        }
        creations
    }

    fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(address) = line.strip_suffix(": Creating...") {
            self.addresses.push(address.to_owned());
        } else if let Some((address, rest)) = line.split_once(": Creation complete after ") {
            let id = rest.split_once(" [id=").and_then(|(_, id)| id.strip_suffix(']')).unwrap_or_default();
            if let Some(at) = self.addresses.iter().rposition(|known| known == address) {
                self.ids.insert(at, id.to_owned());
            }
        }
    }

    /// A sentence without the final period. First come resources without an id, then the newest, which are the least likely
    /// to be in the state.
    pub(super) fn note(&self, engine: &str) -> Option<String> {
        if self.addresses.is_empty() {
            return None;
        }
        let (created, started): (Vec<usize>, Vec<usize>) =
            (0..self.addresses.len()).rev().partition(|at| self.ids.contains_key(at));
        let named = started.iter().chain(&created).take(NAMED).map(|at| {
            let address = &self.addresses[*at];
            match self.ids.get(at).map(String::as_str) {
                None => format!("{address} (not finished)"),
                Some(id) if id.is_empty() || id.len() > LONGEST_ID => address.clone(),
                Some(id) => format!("{address} (id {id})"),
            }
        });
        let named = named.collect::<Vec<_>>().join(", ");
        let more = self.addresses.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more, see the log") } else { String::new() };
        Some(format!(
            "{engine} was killed and could not save its state, so resources may exist that the state does not have. It had \
             started to create: {named}{more}. Before the next run, import those that exist or delete them"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_resources_come_first_and_the_newest_before_older_ones() {
        let mut creations = Creations::default();
        assert_eq!(creations.note("tofu"), None);
        for line in [
            "a.a: Creating...",
            "a.b[\"x: y\"]: Creating...",
            "a.c: Creating...",
            "a.a: Still creating... [10s elapsed]",
            "a.a: Creation complete after 12s [id=a]b]",
            "a.c: Creation complete after 0s",
            "a.d: Modifying... [id=d]",
        ] {
            creations.read(line);
        }
        let note = creations.note("tofu").unwrap();
        assert!(note.contains(": a.b[\"x: y\"] (not finished), a.c, a.a (id a]b). Before"), "{note}");
        (0..30).for_each(|at| creations.read(&format!("b[{at}]: Creating...")));
        let note = creations.note("tofu").unwrap();
        assert!(note.contains("b[29] (not finished)") && note.contains(" and 13 more"), "{note}");
    }
}
