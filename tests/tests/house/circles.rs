//! No import cycle between the files of a crate crosses its folders.
//!
//! A file and the files of its own folder (`session.rs` and `session/`) may import each other. So
//! may files of the same folder. Two folders, however, are separate for a reason: with a cycle
//! through both, neither can be read, tested or moved without the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use shardwright_tests::rust_source::code_only;
use shardwright_tests::tree;

/// Path of a module, such as `chain::check`. Empty for the root of the crate.
type Module = Vec<String>;

#[test]
fn no_circle_of_imports_crosses_folders() {
    let Some(files) = tree::rust_files() else { return };
    let mut crates: BTreeMap<String, Vec<(Module, String)>> = BTreeMap::new();
    for file in files {
        let text = file.to_string_lossy().into_owned();
        let Some((folder, within)) = text.split_once("/src/") else { continue };
        if tree::root().join(folder).join("Cargo.toml").is_file() && !within.starts_with("bin/") {
            let module = (module_of(Path::new(within)), code_only(&tree::read(&file)));
            crates.entry(folder.to_owned()).or_default().push(module);
        }
    }
    assert!(crates.len() > 20, "{} crates", crates.len());

    let mut wrong = Vec::new();
    for (folder, files) in &crates {
        let circles = Source::new(files).circles_across_folders();
        wrong.extend(circles.iter().map(|circle| format!("{folder}: {}", circle.join(", "))));
    }
    assert!(wrong.is_empty(), "circles of imports across folders:\n  {}", wrong.join("\n  "));
}

/// Returns the module of a source file: `chain/check.rs` is `chain::check`, `chain.rs` and
/// `chain/mod.rs` are `chain`.
fn module_of(within: &Path) -> Module {
    let mut names: Module =
        within.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|last| last == "mod")
        || matches!(&names[..], [one] if one == "lib" || one == "main")
    {
        names.pop();
    }
    names
}

/// The modules of a crate with their imports: the imported path, and its name in the importing
/// module.
struct Source(BTreeMap<Module, Vec<(Module, String)>>);

impl Source {
    fn new(files: &[(Module, String)]) -> Source {
        let tests: Vec<Module> = files.iter().flat_map(|(module, code)| test_modules(module, code)).collect();
        let is_for_tests = |module: &Module| tests.iter().any(|test| module.starts_with(test));
        let files = files.iter().filter(|(module, _)| !is_for_tests(module));
        Source(files.map(|(module, code)| (module.clone(), imports(code))).collect())
    }

    /// Returns the module that defines `path` as seen from `module`, or `None` for other crates.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            child if self.0.contains_key(&[&module[..], &[child.to_owned()]].concat()) => {
                rest = path;
                module.clone()
            }
            _ => return None,
        };
        while let Some((name, further)) = rest.split_first() {
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if name == "super" {
                at.pop()?;
            } else if self.0.contains_key(&child) {
                at = child;
            } else {
                // A re-export: follow it to the definition.
                let imported = self.0.get(&at)?.iter().find(|(path, here)| here == name && path.len() > 1);
                return match imported {
                    Some((path, _)) if depth < 8 => self.resolve(&at, path, depth + 1),
                    Some(_) => None,
                    None => Some(at),
                };
            }
            rest = further;
        }
        Some(at)
    }

    /// Returns the groups of files that import each other across folders.
    fn circles_across_folders(&self) -> BTreeSet<Vec<String>> {
        let uses: BTreeMap<&Module, BTreeSet<Module>> = self
            .0
            .iter()
            .map(|(module, imports)| {
                let used = imports.iter().filter_map(|(path, _)| self.resolve(module, path, 0));
                // The files of a folder belong together with the file that declares the folder.
                let apart = |used: &Module| !used.starts_with(module) && !module.starts_with(used);
                (module, used.filter(apart).collect())
            })
            .collect();
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.0.keys().map(|module| (module, reached(&uses, module))).collect();
        let folder = |module: &Module| {
            let has_folder =
                self.0.keys().any(|other| other.len() > module.len() && other.starts_with(module));
            module[..module.len() - usize::from(!has_folder)].to_vec()
        };
        let mut circles = BTreeSet::new();
        for (module, others) in &reached {
            let circle: Vec<&Module> =
                others.iter().copied().filter(|other| reached[other].contains(module)).collect();
            let folders: BTreeSet<Module> = circle.iter().map(|module| folder(module)).collect();
            if folders.len() > 1 {
                circles.insert(circle.iter().map(|module| module.join("::")).collect());
            }
        }
        circles
    }
}

/// Returns all modules that `from` imports, directly or through others.
fn reached<'m>(uses: &'m BTreeMap<&Module, BTreeSet<Module>>, from: &'m Module) -> BTreeSet<&'m Module> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(uses.get(module).into_iter().flatten().filter(|used| reached.insert(*used)));
    }
    reached
}

/// Returns the modules that `code` declares for tests only, in files of their own.
fn test_modules(module: &Module, code: &str) -> Vec<Module> {
    let after = code.match_indices("#[cfg(test)]").filter_map(|(at, _)| code[at..].lines().nth(1));
    let names = after.filter_map(|line| line.trim().split_once("mod ")?.1.strip_suffix(';'));
    names.map(|name| [&module[..], &[name.to_owned()]].concat()).collect()
}

/// Returns the paths before the first test module: `use` trees and paths from `crate` and `super`.
fn imports(code: &str) -> Vec<(Module, String)> {
    let is_tests = |at: usize| code[at..].lines().nth(1).is_some_and(|line| line.trim_end().ends_with('{'));
    let tests = code.match_indices("#[cfg(test)]\nmod ").map(|(at, _)| at).find(|&at| is_tests(at));
    let code = &code[..tests.unwrap_or(code.len())];
    let mut imports = Vec::new();
    for (at, word) in code.match_indices("use ") {
        let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with("pub") {
            let tree = code[at + word.len()..].split(';').next().unwrap_or_default();
            expand(&[], tree, &mut imports);
        }
    }
    for start in ["crate::", "super::"] {
        let begins = |&(at, _): &(usize, &str)| {
            !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
        };
        for (at, _) in code.match_indices(start).filter(begins) {
            let path = code[at..].split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next();
            let path = path.unwrap_or_default().trim_end_matches(':');
            // A `use` was already expanded as a tree.
            let names: Module = path.split("::").map(str::to_owned).collect();
            imports.push((names, String::new()));
        }
    }
    imports
}

/// Expands a tree such as `a::{b, c::{self, d as e}}` into its paths and their local names.
fn expand(before: &[String], tree: &str, into: &mut Vec<(Module, String)>) {
    let names = |path: &str| -> Module {
        let names = path.split("::").map(str::trim).filter(|name| !name.is_empty() && *name != "self");
        before.iter().cloned().chain(names.map(str::to_owned)).collect()
    };
    let Some((path, inner)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = names(path);
        let name = if name.is_empty() { path.last().cloned() } else { Some(name.trim().to_owned()) };
        if let Some(name) = name {
            into.push((path, name));
        }
        return;
    };
    let path = names(path);
    let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
    let (mut depth, mut start) = (0, 0);
    for (at, character) in inner.char_indices().chain([(inner.len(), ',')]) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&path, &inner[start..at], into);
                start = at + 1;
            }
            _ => {}
        }
    }
}

#[test]
fn circles_are_found_through_folders_and_what_is_exported_again() {
    let circles = |files: &[(&str, &str)]| {
        let files: Vec<(Module, String)> =
            files.iter().map(|(path, code)| (module_of(Path::new(path)), (*code).to_owned())).collect();
        Source::new(&files).circles_across_folders().into_iter().collect::<Vec<_>>()
    };
    let root = ("lib.rs", "mod a;\nmod b;\npub use b::{B, inner::C as D};\n");
    // Cycles within one folder, or between a file and its own folder.
    assert!(circles(&[root, ("a.rs", "use crate::B;"), ("b.rs", "use crate::a::A;")]).is_empty());
    assert!(circles(&[root, ("b.rs", "use inner::C;"), ("b/inner.rs", "use super::B;")]).is_empty());
    // A cycle through the root, under another name.
    let inner = ("b/inner.rs", "fn f() { crate::a::f() }");
    assert_eq!(
        circles(&[root, ("a.rs", "use crate::{D, Other};"), ("b.rs", ""), inner]),
        [["a".to_owned(), "b::inner".to_owned()]]
    );
    assert!(
        circles(&[root, ("a.rs", "#[cfg(test)]\nmod tests {\n use crate::D;\n}"), ("b.rs", ""), inner])
            .is_empty()
    );
}
