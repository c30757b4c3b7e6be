use super::*;

const FAKE: &str = "example.test/acme/fake/1.0.0/linux_amd64";

fn cache() -> (tempfile::TempDir, PluginCache) {
    let root = tempfile::tempdir().unwrap();
    let cache = PluginCache::of("terraform", root.path());
    (root, cache)
}

fn add(cache: &PluginCache, package: &str) {
    let folder = cache.directory().join(package);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("terraform-provider-fake_v1.0.0"), "program").unwrap();
}

#[test]
fn the_lock_is_released_with_its_last_handle() {
    let (_root, cache) = cache();
    let lock = cache.try_lock("a/b/c").unwrap().unwrap();
    let copy = lock.try_clone().unwrap();
    drop(lock);
    assert_eq!(cache.holder(), "a/b/c");
    assert!(cache.try_lock("a/b/c").unwrap().is_none());
    // A program that another test is just starting may have a copy too, for a moment.
    drop(copy);
    while cache.try_lock("a/b/c").unwrap().is_none() {
        std::thread::yield_now();
    }
}

#[test]
fn packages_of_an_incomplete_init_are_removed() {
    let (_root, cache) = cache();
    let _lock = cache.try_lock("a/b/c").unwrap().unwrap();
    assert_eq!(cache.begin().unwrap(), Vec::<String>::new());
    add(&cache, FAKE);
    fs::remove_file(cache.unfinished_path()).unwrap();
    assert_eq!(cache.begin().unwrap(), Vec::<String>::new());
    let half = "example.test/acme/fake/1.1.0/linux_amd64";
    add(&cache, half);
    assert_eq!(cache.begin().unwrap(), [half]);
    assert!(cache.directory().join(FAKE).is_dir() && !cache.directory().join(half).exists());
    // OpenTofu leaves its locks there.
    fs::write(cache.directory().join(format!("{half}.lock")), "").unwrap();
    assert_eq!(cache.begin().unwrap(), Vec::<String>::new());
    // Nobody has completed yet, and what was removed is not taken for something that was there.
    add(&cache, half);
    assert_eq!(cache.begin().unwrap(), [half]);
}

#[test]
fn a_cached_package_must_match_the_checksum_in_the_lock_file() {
    let (root, cache) = cache();
    let lock_file = |hash: &str| {
        let text = format!(
            "provider \"example.test/acme/fake\" {{\n  version = \"1.0.0\"\n  hashes = [\n    \"zh:00\",\n    \"{hash}\",\n  ]\n}}\n"
        );
        fs::write(root.path().join(".terraform.lock.hcl"), text).unwrap();
    };
    assert_eq!(cache.mismatch(root.path()).unwrap(), None);
    lock_file("h1:other");
    assert_eq!(cache.mismatch(root.path()).unwrap(), None, "nothing is cached yet");
    add(&cache, FAKE);
    assert_eq!(cache.mismatch(root.path()).unwrap().unwrap(), "example.test/acme/fake");
    lock_file(&hash(&cache.directory().join(FAKE)).unwrap());
    assert_eq!(cache.mismatch(root.path()).unwrap(), None);
}

#[test]
fn a_package_is_only_read_again_if_it_has_changed() {
    let (root, cache) = cache();
    add(&cache, FAKE);
    let package = cache.directory().join(FAKE);
    let program = package.join("terraform-provider-fake_v1.0.0");
    let seen = || KnownHashes::load(cache.hashes_path()).of(&package).unwrap();
    let first = hash(&package).unwrap();
    assert_eq!(seen(), first);
    // A change that shows in nothing but the contents.
    let time = fs::metadata(&program).unwrap().modified().unwrap();
    fs::write(&program, "PROGRAM").unwrap();
    File::options().append(true).open(&program).unwrap().set_modified(time).unwrap();
    assert_eq!(seen(), first, "it was read again");
    fs::write(package.join("LICENSE"), "a second file").unwrap();
    let second = seen();
    assert_eq!(second, hash(&package).unwrap());
    assert_ne!(second, first);
    fs::write(cache.hashes_path(), "damaged").unwrap();
    assert_eq!(seen(), second);
    // A package behind a link, as an administrator may provide it.
    let linked = root.path().join("linked/linux_amd64");
    fs::create_dir_all(linked.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&package, &linked).unwrap();
    fs::write(root.path().join("linked/linux_amd64.lock"), "").unwrap();
    assert_eq!(
        packages(&root.path().join("linked"), 1).unwrap().into_iter().collect::<Vec<_>>(),
        ["linux_amd64"]
    );
    assert_eq!(KnownHashes::load(cache.hashes_path()).of(&linked).unwrap(), second);
}
