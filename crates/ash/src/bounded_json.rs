//! Parses untrusted JSON with a limit on its parts: a part takes much more memory than the bytes it
//! was sent as. The parts are counted before any memory is taken, up to the first above the limit.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The most values and names of fields. Ten thousand files are half of it.
pub(super) const PARTS_MAX: u32 = 100_000;

/// What a part may take, beside its text.
pub(super) const PART_BYTES: u64 = 96;

/// Reads a whole text.
pub(super) fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    check(text)?;
    serde_json::from_slice(text)
}

/// Checks a whole text and takes no memory for it.
pub(super) fn check(text: &[u8]) -> Result<(), serde_json::Error> {
    let left = Cell::new(PARTS_MAX);
    let mut from = serde_json::Deserializer::from_slice(text);
    Part(&left).deserialize(&mut from)?;
    from.end()
}

/// One that is to be counted, with how many may still come.
#[derive(Clone, Copy)]
struct Part<'a>(&'a Cell<u32>);

impl Part<'_> {
    fn count<E: Error>(self) -> Result<(), E> {
        let left = self.0.get().checked_sub(1);
        let left = left
            .ok_or_else(|| E::custom(format_args!("the JSON has more than {PARTS_MAX} parts")))?;
        self.0.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        self.count()?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while fields.next_key::<IgnoredAny>()?.is_some() {
            self.count()?;
            fields.next_value_seed(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn json_with_too_many_parts_is_refused_early() {
        let zeros = |count: u32| format!("[0{}]", ",0".repeat(count as usize - 1));
        assert!(parse(zeros(PARTS_MAX - 1).as_bytes()).is_ok());
        for over in [
            zeros(PARTS_MAX),
            // Not closed: who came to its end would tell that.
            zeros(3 * PARTS_MAX).replace(']', ""),
            format!("[{}", r#"{"":{}},"#.repeat(PARTS_MAX as usize / 2)),
        ] {
            let error_text = parse(over.as_bytes()).unwrap_err().to_string();
            assert!(error_text.starts_with("the JSON has more than 100000 parts"), "{error_text}");
        }
        assert!(parse("[".repeat(1000).as_bytes()).unwrap_err().to_string().contains("recursion"));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map("\\PC{0,4}", inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_within_the_limit_is_read_unchanged(value in any_json()) {
            let text = value.to_string();
            let expected: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(parse(text.as_bytes()).unwrap(), expected);
        }

        #[test]
        fn nonsense_is_refused_as_elsewhere(text in "[\\[\\]{}\",:0-9a-z\\\\ ]{0,24}") {
            let expected = serde_json::from_str::<Value>(&text);
            let read = parse(text.as_bytes());
            prop_assert_eq!(read.is_ok(), expected.is_ok(), "{}", text);
            if let (Ok(read), Ok(expected)) = (read, expected) {
                prop_assert_eq!(read, expected);
            }
        }
    }
}
