//! Fingerprints of arguments.
//!
//! Two of them, because the two strategies mean different things by "the same call". The *signature* (`classic`) takes
//! every byte of every string; only the order of keys and the spelling of numbers do not matter. The *key* (`progress`)
//! also drops what says nothing about what is asked for: white space, `./` and `//`, clock times, random temporary names
//! and volatile keys. Ids and paging positions stay in both.

use serde_json::{Map, Value};

use super::digest::{Digest, Fingerprint};
use super::mask::{Kind, Masker};

/// Keys whose values change with every call and ask for nothing.
const VOLATILE_KEYS: &[&str] = &[
    "timestamp",
    "ts",
    "request_id",
    "requestId",
    "nonce",
    "call_id",
    "callId",
    "idempotency_key",
    "idempotencyKey",
];
/// Beside a command these only comment on it.
const COMMENT_KEYS: &[&str] = &["description", "explanation", "reason", "thought", "thoughts"];

/// The classic signature: tool name (lower case, aliases resolved) and arguments.
#[must_use]
pub fn signature(tool: &str, args: &Value) -> Fingerprint {
    let mut digest = Digest::new();
    digest.bytes(tool.as_bytes());
    digest.byte(0xFF);
    literal(&mut digest, args);
    digest.finish()
}

/// The fingerprint of any value, byte for byte.
pub(crate) fn value(args: &Value) -> Fingerprint {
    let mut digest = Digest::new();
    literal(&mut digest, args);
    digest.finish()
}

/// The key of the progress rules: tool name and normalised arguments.
#[must_use]
pub fn key(tool: &str, args: &Value, volatile: &[String]) -> Fingerprint {
    let mut masker = Masker::new(Kind::Argument, Digest::new());
    masker.push(tool.as_bytes());
    let digest = masker.finish();
    digest.byte(0xFF);
    normalised(digest, args, volatile);
    digest.finish()
}

fn number(digest: &mut Digest, number: &serde_json::Number) {
    // As JavaScript sees it: 1, 1.0 and 1e0 are one number, and integers beyond 2^53 lose precision. -0 prints as 0.
    let number = number.as_f64().unwrap_or(f64::NAN) + 0.0;
    digest.byte(b'n');
    digest.bytes(&number.to_bits().to_le_bytes());
}

fn entries(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    if !entries.is_sorted_by_key(|(key, _)| *key) {
        entries.sort_by_key(|(key, _)| *key);
    }
    entries
}

fn literal(digest: &mut Digest, value: &Value) {
    match value {
        Value::Null => digest.byte(b'0'),
        Value::Bool(false) => digest.byte(b'f'),
        Value::Bool(true) => digest.byte(b't'),
        Value::Number(n) => number(digest, n),
        Value::String(text) => {
            digest.byte(b's');
            digest.bytes(text.as_bytes());
            digest.byte(0xFF);
        }
        Value::Array(items) => {
            digest.byte(b'[');
            for item in items {
                literal(digest, item);
            }
            digest.byte(b']');
        }
        Value::Object(map) => {
            digest.byte(b'{');
            for (key, value) in entries(map) {
                digest.bytes(key.as_bytes());
                digest.byte(0xFF);
                literal(digest, value);
            }
            digest.byte(b'}');
        }
    }
}

fn normalised(digest: &mut Digest, value: &Value, volatile: &[String]) {
    match value {
        Value::String(text) => {
            digest.byte(b's');
            // The masker owns its sink: give it a fresh digest and take that one's value, which also ends the string.
            let mut masker = Masker::new(Kind::Argument, Digest::new());
            masker.push(text.as_bytes());
            let masked = masker.finish().finish();
            digest.bytes(&masked.0.to_le_bytes());
        }
        Value::Array(items) => {
            digest.byte(b'[');
            for item in items {
                normalised(digest, item, volatile);
            }
            digest.byte(b']');
        }
        Value::Object(map) => {
            let comments = map.contains_key("command") || map.contains_key("cmd");
            digest.byte(b'{');
            for (key, value) in entries(map) {
                let dropped = VOLATILE_KEYS.contains(&key.as_str())
                    || volatile.iter().any(|name| name == key)
                    || (comments && COMMENT_KEYS.contains(&key.as_str()));
                if dropped && map.len() > 1 {
                    continue;
                }
                digest.bytes(key.as_bytes());
                digest.byte(0xFF);
                normalised(digest, value, volatile);
            }
            digest.byte(b'}');
        }
        other => literal(digest, other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn spelling_that_means_nothing_makes_no_new_call() {
        let same = |a: Value, b: Value| key("t", &a, &[]) == key("t", &b, &[]);
        assert!(same(json!({"a": 1, "b": 2.0}), json!({"b": 2, "a": 1.0})));
        assert!(same(json!({"command": "ls  ./src"}), json!({"command": " ls src\n"})));
        assert!(same(json!({"q": "x", "ts": 1}), json!({"q": "x", "ts": 2})));
        assert!(same(
            json!({"command": "ls", "description": "a"}),
            json!({"command": "ls", "description": "b"})
        ));
        assert!(!same(json!({"title": "x", "description": "a"}), json!({"title": "x", "description": "b"})));
        assert!(!same(json!({"id": "r1"}), json!({"id": "r2"})));
        assert!(!same(json!({"page": 1}), json!({"page": 2})));
        assert!(!same(json!({"nonce": "r1"}), json!({"nonce": "r2"})), "a lone key is what is asked for");
        assert!(!same(json!(["ab", "c"]), json!(["a", "bc"])));
        assert!(!same(json!({"a": null}), json!({})));
    }

    #[test]
    fn the_signature_takes_strings_as_they_are() {
        let same = |a: Value, b: Value| signature("t", &a) == signature("t", &b);
        assert!(same(json!({"a": 1, "b": {"x": 1, "y": 2}}), json!({"b": {"y": 2, "x": 1}, "a": 1.0})));
        assert!(!same(json!({"c": "ls"}), json!({"c": "ls "})));
        assert!(!same(json!({"a": 1}), json!({"a": 1, "b": null})));
        assert!(same(json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_992_u64)));
        assert_ne!(signature("t", &json!({})), signature("u", &json!({})));
    }
}
