//! The schema and the reader know the same keys.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

/// Keys that exclude others, so that one valid file cannot have them all.
const EXCLUDED: [&str; 5] = ["artifact", "fork", "fork.enabled", "kernel.path", "snapshot.ready.exec"];

/// The keys of a table and of the tables in it, as `table.key`.
fn keys(table: &toml::Table, path: &str, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        let inner = format!("{path}{key}");
        let tables = match value {
            toml::Value::Table(table) => vec![table],
            toml::Value::Array(items) => items.iter().filter_map(toml::Value::as_table).collect(),
            _ => Vec::new(),
        };
        // The names of secrets are the user's.
        for table in tables.into_iter().filter(|_| inner != "secrets") {
            keys(table, &format!("{inner}."), found);
        }
        found.insert(inner);
    }
}

/// The schema that a property stands for.
fn target<'s>(root: &'s Value, property: &'s Value) -> &'s Value {
    let property = property.get("items").unwrap_or(property);
    match property.get("$ref").and_then(Value::as_str) {
        Some(path) => root.pointer(path.trim_start_matches('#')).unwrap(),
        None => property,
    }
}

fn schema_keys(root: &Value, table: &Value, path: &str, found: &mut BTreeSet<String>) {
    let variants = table.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    for table in [table].into_iter().chain(variants) {
        for (key, property) in table.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let inner = format!("{path}{key}");
            schema_keys(root, target(root, property), &format!("{inner}."), found);
            found.insert(inner);
        }
    }
}

#[test]
fn schema_and_reader_know_the_same_keys() {
    let root = serde_json::to_value(schemars::schema_for!(Smolfile)).unwrap();
    let mut described = BTreeSet::new();
    schema_keys(&root, &root, "", &mut described);
    described.retain(|key| !key.starts_with("artifact."));
    let mut read: BTreeSet<String> = EXCLUDED.map(str::to_owned).into();
    keys(&FULL.parse().unwrap(), "", &mut read);
    let difference: Vec<_> = described.symmetric_difference(&read).collect();
    assert!(difference.is_empty(), "in the schema or in full.toml only: {difference:?}");
    parse(FULL).unwrap();
}

#[test]
fn every_key_is_described() {
    fn undescribed(value: &Value, path: &str, found: &mut Vec<String>) {
        for (key, property) in value.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if property.get("description").is_none() {
                found.push(format!("{path}{key}"));
            }
        }
        for (name, table) in value.get("$defs").and_then(Value::as_object).into_iter().flatten() {
            undescribed(table, &format!("{name}."), found);
        }
    }
    let mut found = Vec::new();
    undescribed(&serde_json::to_value(schemars::schema_for!(Smolfile)).unwrap(), "", &mut found);
    assert!(found.is_empty(), "{found:?}");
}
