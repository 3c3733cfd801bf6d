//! Canonical JSON: RFC 8785, restricted to what a manifest uses.
//!
//! Objects, arrays, strings, booleans and integers from 0 to 2^53 - 1. No null (a key without a value
//! is left out), no fraction, no negative number, no duplicate key, no space. So a manifest has one
//! spelling, and its digest can name it.

use serde_json::{Map, Value};

use crate::limits::MAX_MANIFEST_DEPTH;

/// Integers beyond this do not survive readers that hold numbers as doubles.
const MAX_INTEGER: u64 = (1 << 53) - 1;

/// Writes `value` in canonical form.
///
/// # Errors
/// What in `value` has no canonical form.
pub(crate) fn to_vec(value: &Value) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    write(value, MAX_MANIFEST_DEPTH, &mut out)?;
    Ok(out)
}

fn write(value: &Value, depth: u32, out: &mut Vec<u8>) -> Result<(), String> {
    let depth = depth.checked_sub(1).ok_or("nested too deep")?;
    match value {
        Value::Null => return Err("null (leave the key out)".into()),
        Value::Bool(yes) => out.extend_from_slice(if *yes { b"true" } else { b"false" }),
        Value::Number(number) => out.extend_from_slice(integer(number)?.to_string().as_bytes()),
        Value::String(text) => string(text, out)?,
        Value::Array(items) => array(items, depth, out)?,
        Value::Object(map) => object(map, depth, out)?,
    }
    Ok(())
}

fn integer(number: &serde_json::Number) -> Result<u64, String> {
    let fits = number.as_u64().filter(|n| *n <= MAX_INTEGER);
    fits.ok_or_else(|| format!("the number {number}: only integers from 0 to 2^53-1 are allowed"))
}

/// `serde_json` escapes exactly as RFC 8785 asks: the short forms, `\u00xx` in lower case, nothing else.
fn string(text: &str, out: &mut Vec<u8>) -> Result<(), String> {
    serde_json::to_writer(out, text).map_err(|e| e.to_string())
}

fn array(items: &[Value], depth: u32, out: &mut Vec<u8>) -> Result<(), String> {
    out.push(b'[');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write(item, depth, out)?;
    }
    out.push(b']');
    Ok(())
}

fn object(map: &Map<String, Value>, depth: u32, out: &mut Vec<u8>) -> Result<(), String> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by(|a, b| a.0.encode_utf16().cmp(b.0.encode_utf16()));
    out.push(b'{');
    for (i, (key, item)) in entries.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        string(key, out)?;
        out.push(b':');
        write(item, depth, out)?;
    }
    out.push(b'}');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Result<String, String> {
        to_vec(&serde_json::from_str(text).unwrap()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    /// The string and the key order are the examples of RFC 8785, sections 3.2.2.2 and 3.2.3.
    #[test]
    fn the_rfcs_examples_come_out_as_it_prints_them() {
        let string = r#"["\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/"]"#;
        assert_eq!(canonical(string).unwrap(), "[\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"]");
        let keys = r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
        let order = "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}";
        assert_eq!(canonical(keys).unwrap(), order);
    }

    #[test]
    fn values_without_a_canonical_form_are_refused() {
        let deep = "[".repeat(65) + &"]".repeat(65);
        for text in ["null", "{\"a\":null}", "1.5", "1.0", "-1", "9007199254740992", "1e3", &deep] {
            assert!(canonical(text).is_err(), "{text}");
        }
    }
}
