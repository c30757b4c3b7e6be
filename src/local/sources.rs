//! Sources of modules that lead out of a directory. Where the directory is taken alone, there is nothing at their end.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use hcl_edit::expr::Expression;
use hcl_edit::structure::Body;

/// The first local source, in the directory or in a module of its own, that leads out of it, as it is written.
pub fn leading_out(directory: &Path) -> Option<String> {
    let mut todo = vec![PathBuf::new()];
    let mut seen = BTreeSet::new();
    while let Some(folder) = todo.pop() {
        for source in local_sources(&directory.join(&folder)) {
            match join(&folder, Path::new(&source)) {
                None => return Some(source),
                Some(inside) if seen.insert(inside.clone()) => todo.push(inside),
                Some(_) => {}
            }
        }
    }
    None
}

/// None when it leads above where `folder` is counted from.
fn join(folder: &Path, source: &Path) -> Option<PathBuf> {
    let mut path = folder.to_owned();
    for component in source.components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::ParentDir if !path.pop() => return None,
            _ => {}
        }
    }
    Some(path)
}

/// What cannot be read or parsed has none that we know of: this is for a hint only.
fn local_sources(folder: &Path) -> Vec<String> {
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_code = path.extension().is_some_and(|it| it == "tf" || it == "tofu");
        if !is_code || !path.is_file() {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let Ok(body) = hcl_edit::parser::parse_body(&text) else { continue };
        let modules = body.get_blocks("module").filter_map(|module| text_of(&module.body, "source"));
        sources.extend(modules.filter(|source| source.starts_with("./") || source.starts_with("../")));
    }
    sources.sort();
    sources
}

fn text_of(body: &Body, name: &str) -> Option<String> {
    match &body.get_attribute(name)?.value {
        Expression::String(text) => Some(text.value().clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_sources_that_leave_the_directory_are_found_also_those_of_its_own_modules() {
        let home = tempfile::tempdir().unwrap();
        let write = |path: &str, source: &str| {
            let path = home.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("module \"x\" {{\n  source = \"{source}\"\n}}\n")).unwrap();
        };
        let found = || leading_out(&home.path().join("p"));
        write("p/registry.tf", "hashicorp/consul/aws");
        write("p/main.tf", "./modules/a");
        write("p/modules/a/main.tf", "../b");
        write("p/modules/b/main.tf", "../a");
        assert_eq!(found(), None);
        write("p/modules/b/main.tf", "../../../shared");
        assert_eq!(found().as_deref(), Some("../../../shared"));
        write("p/main.tf", "../mod");
        assert_eq!(found().as_deref(), Some("../mod"));
    }
}
