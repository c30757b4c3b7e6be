//! Merges the layers: a later layer wins, value by value, and each value has its origin.

use std::collections::BTreeMap;

use super::resolve::ResolvedValue;

/// Values by path. A list has one entry per item, or one entry for itself if it is empty.
pub(super) type Merged = BTreeMap<Vec<String>, ResolvedValue>;

/// Old names come first, so that a current name in any layer wins.
pub(super) fn merge(resolved: Vec<ResolvedValue>) -> Merged {
    let (older, current): (Vec<_>, Vec<_>) = resolved.into_iter().partition(|one| one.older_name);
    let mut merged = Merged::new();
    for one in older.into_iter().chain(current) {
        // An empty list replaces the items of earlier layers, and an item replaces an empty list.
        merged.retain(|path, _| !path.starts_with(&one.path) && !one.path.starts_with(path));
        merged.insert(one.path.clone(), one);
    }
    merged
}
