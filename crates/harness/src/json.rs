//! JSON from and to the other side: passed on unchanged where that is safe, and always in one line.
//! It must never let through what would break a line protocol or another parser.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

/// The deepest nesting that is passed on; parsers give up somewhere above.
const DEPTH_MAX: usize = 100;

/// A value of the other side as text in one line, or what is wrong with it.
pub(crate) fn checked_line(raw: &RawValue) -> Result<Arc<str>, String> {
    let text = raw.get();
    if is_deeper_than(DEPTH_MAX, text) {
        return Err(format!("a value is nested deeper than {DEPTH_MAX}"));
    }
    if text.contains(['\r', '\n']) {
        return one_line(text).map(Arc::from);
    }
    Ok(Arc::from(text))
}

/// JSON text of a caller in one line.
pub(crate) fn one_line(text: &str) -> Result<String, String> {
    if !text.contains(['\r', '\n']) {
        return Ok(text.to_owned());
    }
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(value.to_string())
}

/// The same JSON in plain ASCII, for programs that decode chunks without regard to characters.
pub(crate) fn ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            plain.push(character);
            continue;
        }
        // Only strings have such characters.
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(plain, "\\u{unit:04x}");
        }
    }
    plain
}

/// Whether it is an object. The text must be valid JSON.
pub(crate) fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

fn is_deeper_than(max: usize, text: &str) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > max {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn json_values_stay_unchanged_but_for_line_ends() {
        for (text, expected) in [
            ("{\"n\": 1.0000000000000000000001}", "{\"n\": 1.0000000000000000000001}"),
            ("{\"a\":\r\n[1,\n2]}", "{\"a\":[1,2]}"),
            ("\"a\\nb\"", "\"a\\nb\""),
        ] {
            assert_eq!(&*checked_line(&raw(text)).unwrap(), expected);
        }
    }

    #[test]
    fn ascii_json_means_the_same() {
        for text in ["\"a\"", "\"äöü €\"", "{\"😀\":[\"\\u00e4\\n\"]}"] {
            let plain = ascii(text);
            assert!(plain.is_ascii(), "{plain}");
            let (before, after): (Value, Value) =
                (serde_json::from_str(text).unwrap(), serde_json::from_str(&plain).unwrap());
            assert_eq!(before, after);
        }
    }

    #[test]
    fn json_nesting_is_bounded() {
        let nested = |depth| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(checked_line(&raw(&nested(100))).is_ok());
        assert!(checked_line(&raw(&nested(101))).is_err());
        let brackets = format!("{{\"a\":\"{}\\\"{}\"}}", "[".repeat(500), "{".repeat(500));
        assert!(checked_line(&raw(&brackets)).is_ok(), "text is not nesting");
    }
}
