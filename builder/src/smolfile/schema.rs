//! The JSON Schema of a Smolfile, made from its types, where they do not derive it.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use std::borrow::Cow;
use std::sync::LazyLock;

use super::model::Smolfile;
use super::model::SnapshotEnabled;
use super::values::{CommandLine, Cpus, Delay, DiskSize, FileMode, Memory, Port};

/// Made once: a file of another kind can hold a hundred thousand unknown keys.
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| schemars::schema_for!(Smolfile));

/// The tables that have a key of this name; the file's own table is the empty name.
pub(super) fn tables_with_key(key: &str) -> Vec<String> {
    let schema = SCHEMA.as_value();
    let has = |table: &Value| table.get("properties").and_then(|p| p.get(key)).is_some();
    let top = has(schema).then(String::new);
    top.into_iter().chain(tables(schema).filter(|(_, table)| has(table)).map(|(name, _)| name)).collect()
}

/// The tables at the top of the file by their names, with their schemas.
fn tables(schema: &Value) -> impl Iterator<Item = (String, &Value)> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten().map(|(name, property)| (name.clone(), resolve(schema, property)))
}

/// Follows a reference into `$defs`, that of an array's items too.
fn resolve<'s>(schema: &'s Value, property: &'s Value) -> &'s Value {
    let property = property.get("items").unwrap_or(property);
    let name = property.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/$defs/"));
    name.and_then(|name| schema.get("$defs")?.get(name)).unwrap_or(property)
}

impl JsonSchema for Cpus {
    fn schema_name() -> Cow<'static, str> {
        "Cpus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "integer",
            "description": "A number of virtual CPUs.",
            "minimum": 1,
            "maximum": 32,
        })
    }
}

impl JsonSchema for Memory {
    fn schema_name() -> Cow<'static, str> {
        "Memory".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "MiB as a number, or a size with its unit (powers of 1024).",
            "anyOf": [
                { "type": "integer", "minimum": 64, "maximum": 1_048_576 },
                { "type": "string", "pattern": SIZE_PATTERN },
            ],
            "examples": [512, "2GiB"],
        })
    }
}

impl JsonSchema for DiskSize {
    fn schema_name() -> Cow<'static, str> {
        "DiskSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "GiB as a number, or a size with its unit (powers of 1024).",
            "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": 16383 },
                { "type": "string", "pattern": SIZE_PATTERN },
            ],
            "examples": [4, "512MiB"],
        })
    }
}

const SIZE_PATTERN: &str = r"^\s*[0-9]+\s*([bB]|[kKmMgGtT]([iI]?[bB])?)\s*$";

impl JsonSchema for FileMode {
    fn schema_name() -> Cow<'static, str> {
        "FileMode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Permissions in octal: a string such as \"0755\", or an octal integer, 0o755.",
            "anyOf": [
                { "type": "string", "pattern": "^[0-7]{3,4}$" },
                { "type": "integer", "minimum": 0, "maximum": 4095 },
            ],
            "examples": ["0755"],
        })
    }
}

impl JsonSchema for Delay {
    fn schema_name() -> Cow<'static, str> {
        "Delay".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A length of time: numbers with `ms`, `s`, `m`, `h` or `d`. A number alone counts seconds.",
            "anyOf": [
                { "type": "string", "pattern": r"^\s*[0-9][0-9A-Za-z\s]*$" },
                { "type": "integer", "minimum": 0 },
            ],
            "examples": ["10s", "1m30s"],
        })
    }
}

impl JsonSchema for Port {
    fn schema_name() -> Cow<'static, str> {
        "Port".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`HOST:GUEST`, `PORT` or `IP:HOST:GUEST`, optionally with `/tcp` or `/udp`.",
            "anyOf": [
                { "type": "string", "pattern": PORT_PATTERN },
                { "type": "integer", "minimum": 1, "maximum": 65535 },
            ],
            "examples": ["8080:80", "127.0.0.1:5353:53/udp"],
        })
    }
}

const PORT_PATTERN: &str =
    r"^((\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5}:[0-9]{1,5}|[0-9]{1,5}(:[0-9]{1,5})?)(/(tcp|udp))?$";

impl JsonSchema for CommandLine {
    fn schema_name() -> Cow<'static, str> {
        "CommandLine".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A command as a list of words; a string is run by `/bin/sh -c`.",
            "anyOf": [
                { "type": "array", "items": { "type": "string" } },
                { "type": "string", "minLength": 1 },
            ],
            "examples": [["curl", "-f", "http://localhost/health"]],
        })
    }
}

impl JsonSchema for SnapshotEnabled {
    fn schema_name() -> Cow<'static, str> {
        "SnapshotEnabled".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Whether memory is captured; \"auto\" does so where the building host can.",
            "enum": [true, false, "auto"],
        })
    }
}
