//! `schemas/` is what the types say, the reference page names every key, and its examples and the
//! recipes are valid.
//! `SMOLPACK_REGENERATE=1` writes the schemas anew.

#![allow(clippy::unwrap_used, missing_docs)]

use schemars::{JsonSchema, schema_for};
use smolpack_builder::machine::{MachineSpec, Overrides};
use smolpack_builder::smolfile::Smolfile;
use smolpack_format::Manifest;
use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn check<T: JsonSchema>(name: &str) -> serde_json::Value {
    let schema = serde_json::to_value(schema_for!(T)).unwrap();
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    let path = repository().join("schemas").join(name);
    if std::env::var_os("SMOLPACK_REGENERATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(there == text, "schemas/{name} is not what the types say; SMOLPACK_REGENERATE=1 writes it anew");
    schema
}

#[test]
fn the_manifests_schema_is_current() {
    check::<Manifest>("manifest.schema.json");
}

#[test]
fn the_smolfiles_schema_is_current_and_the_reference_has_every_key() {
    let schema = check::<Smolfile>("smolfile.schema.json");
    let page = fs::read_to_string(repository().join("docs/smolfile.md")).unwrap();
    let tables = [&schema].into_iter().chain(schema["$defs"].as_object().unwrap().values());
    let keys = tables.filter_map(|table| table["properties"].as_object()).flat_map(serde_json::Map::keys);
    let missing: Vec<_> = keys.filter(|key| !page.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "docs/smolfile.md lacks {missing:?}");
}

/// The TOML of a page's fenced blocks, with the line each begins on.
fn toml_blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line == "```toml" {
            let block: Vec<_> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            blocks.push((number + 2, block.join("\n")));
        }
    }
    blocks
}

#[test]
fn the_references_examples_are_valid() {
    let page = fs::read_to_string(repository().join("docs/smolfile.md")).unwrap();
    let blocks = toml_blocks(&page);
    assert!(blocks.len() >= 4, "the page's examples are not found");
    for (line, block) in blocks {
        if let Err(error) = Smolfile::parse(&block, Path::new("docs/smolfile.md")) {
            panic!("the example at line {line}:\n{error}");
        }
    }
}

#[test]
fn the_recipes_are_valid_and_can_be_built() {
    let mut seen = 0;
    for folder in fs::read_dir(repository().join("recipes")).unwrap() {
        let path = folder.unwrap().path().join("Smolfile");
        if path.is_file() {
            let smolfile = Smolfile::load(&path).unwrap_or_else(|error| panic!("{error}"));
            assert!(smolfile.image.is_some(), "{}: names no image", path.display());
            let unsupported = MachineSpec { smolfile, overrides: Overrides::default() }.unsupported();
            assert!(unsupported.is_empty(), "{}: {unsupported:?}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 4, "recipes/ has {seen} Smolfiles");
}
