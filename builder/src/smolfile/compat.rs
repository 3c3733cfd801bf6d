//! Keys of smolvm that smolpack reads and does not act on.
//!
//! Existing files must keep working. A key for something a KVM Linux host cannot give is refused only where it
//! asks for it, so `gpu = false` is fine. Others choose between means smolpack has one of.

use schemars::Schema;
use serde_json::{Value, json};

use super::reader::{Decode, Field, TableReader};
use super::report::{Diagnostics, Problem};

/// Switches for what smolpack cannot give, and what that is.
const SWITCHES: [(&str, &str); 4] =
    [("gpu", "a GPU"), ("cuda", "CUDA"), ("auto_graph", "CUDA graphs"), ("rosetta", "Rosetta translation")];

/// The size of what `gpu` switches on, in MiB.
const GPU_MEMORY: &str = "gpu_vram";

/// Choices between means smolpack has one of.
const IGNORED: [&str; 2] = ["net_backend", "block_io"];

/// Tables whose `enabled` changes nothing, for every machine can fork.
const FORK: [&str; 2] = ["fork", "branch"];

/// Reads these keys out of the file's own table.
pub(super) fn check(reader: &mut TableReader<'_, '_, '_>) {
    for (key, what) in SWITCHES {
        if reader.value(key) == Some(true) {
            refuse(reader, key, &format!("smolpack machines cannot have {what}"), &format!("{key} = false"));
        }
    }
    check_gpu_memory(reader);
    for key in IGNORED {
        reader.value::<String>(key);
    }
    reader.exclusive("fork", "branch", "they mean the same: keep one");
    for key in FORK {
        reader.value::<Fork>(key);
    }
}

/// The amount asks for a GPU on its own; beside `gpu` that key is what to look at.
fn check_gpu_memory(reader: &mut TableReader<'_, '_, '_>) {
    let asks = reader.value::<u32>(GPU_MEMORY).is_some_and(|mib| mib > 0);
    if asks && reader.key_span("gpu").is_none() {
        refuse(reader, GPU_MEMORY, "smolpack machines cannot have a GPU", "gpu_vram = 0");
    }
}

fn refuse(reader: &mut TableReader<'_, '_, '_>, key: &'static str, why: &str, instead: &str) {
    let Some(span) = reader.key_span(key) else { return };
    reader.out.push(
        Problem::new(format!("`{key}` is not supported"), span, why)
            .help(Some(format!("remove it or write `{instead}`"))),
    );
}

/// `[fork]`: read for its errors only.
struct Fork;

impl Decode for Fork {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        table.value::<bool>("enabled");
        table.finish();
        Some(Self)
    }
}

/// Adds these keys to the schema, so that editors accept what smolpack accepts.
pub(super) fn add_to_schema(schema: &mut Schema) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (key, what) in SWITCHES {
        let description =
            format!("Not supported: smolpack machines cannot have {what}. Only false is accepted.");
        properties.insert(key.into(), json!({ "description": description, "const": false }));
    }
    let description = "Not supported: smolpack machines cannot have a GPU. Accepted where `gpu` is false.";
    properties.insert(
        GPU_MEMORY.into(),
        json!({ "description": description, "type": "integer", "minimum": 0, "maximum": u32::MAX }),
    );
    for key in IGNORED {
        let description = "A choice of smolvm's; accepted, and changes nothing.";
        properties.insert(key.into(), json!({ "description": description, "type": "string" }));
    }
    for key in FORK {
        properties.insert(key.into(), fork_schema());
    }
    let description = "Another name for `artifact`.";
    properties.insert("pack".into(), json!({ "description": description, "$ref": "#/$defs/Artifact" }));
}

fn fork_schema() -> Value {
    json!({
        "description": "Accepted, and changes nothing: every machine can fork.",
        "type": "object",
        "properties": {
            "enabled": { "description": "Accepted, and changes nothing.", "type": "boolean" },
        },
        "additionalProperties": false,
    })
}

/// `[health]` without a command is accepted, and checks nothing.
pub(super) fn none_required(schema: &mut Schema) {
    schema.remove("required");
}

/// Adds `listen` to the schema of `[service]`, where the peer keeps a port and smolpack an address.
pub(super) fn add_service_listen(schema: &mut Schema) {
    none_required(schema);
    schema.insert(
        "anyOf".into(),
        json!([
            { "required": ["port"] },
            { "required": ["listen"], "properties": { "listen": { "type": "integer" } } },
        ]),
    );
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    let listen = json!({
        "description": "The address it listens on; or its port, as a number.",
        "anyOf": [{ "type": "string" }, { "type": "integer", "minimum": 1, "maximum": u16::MAX }],
    });
    properties.insert("listen".into(), listen);
}
