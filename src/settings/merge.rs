//! The layers on top of each other: a later one wins, value by value, and each value remembers its origin.

use std::collections::BTreeMap;

use super::resolve::Placed;

/// What is in effect, by path. A list has one entry for each item, or one for itself when it is empty.
pub(super) type Merged = BTreeMap<Vec<String>, Placed>;

/// Older names come first, so that a newer name in any layer wins.
pub(super) fn merge(placed: Vec<Placed>) -> Merged {
    let (older, current): (Vec<_>, Vec<_>) = placed.into_iter().partition(|one| one.older_name);
    let mut merged = Merged::new();
    for one in older.into_iter().chain(current) {
        // An empty list replaces the items of earlier layers, and an item replaces an empty list.
        merged.retain(|path, _| !path.starts_with(&one.path) && !one.path.starts_with(path));
        merged.insert(one.path.clone(), one);
    }
    merged
}
