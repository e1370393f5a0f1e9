//! Fields of a request. A field of the wrong type is refused with the text of the framework that
//! Ash uses. So are fields that nothing takes, where a route ends with [`Fields::refuse_rest`].

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;
use model::SessionId;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::errors::AshError;

/// The object in the body of a request.
pub(super) struct Fields {
    map: Map<String, Value>,
    /// Its path, for error messages.
    at: &'static str,
}

impl Fields {
    pub(super) const fn new(map: Map<String, Value>) -> Self {
        Self { map, at: "body" }
    }

    /// One that stands in a list or another field.
    pub(super) fn inner(value: Value, at: &'static str) -> Result<Self, AshError> {
        match value {
            Value::Object(map) => Ok(Self { map, at }),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(AshError::invalid(format!("{at} must be object"))),
        }
    }

    fn wrong<T>(&self, name: &str, what: impl std::fmt::Display) -> Result<T, AshError> {
        Err(AshError::invalid(format!("{}/{name} must {what}", self.at)))
    }

    /// A field as it is; none if it is null.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    pub(super) fn required(&mut self, name: &str) -> Result<Value, AshError> {
        let missing =
            || AshError::invalid(format!("{} must have required property '{name}'", self.at));
        self.map.remove(name).ok_or_else(missing)
    }

    pub(super) fn text(
        &mut self,
        name: &str,
        chars_max: usize,
    ) -> Result<Option<String>, AshError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.chars().count() <= chars_max => Ok(Some(text)),
            Some(Value::String(_)) => {
                self.wrong(name, format_args!("NOT have more than {chars_max} characters"))
            }
            Some(_) => self.wrong(name, "be string"),
        }
    }

    pub(super) fn required_text(
        &mut self,
        name: &str,
        chars_max: usize,
    ) -> Result<String, AshError> {
        if !self.map.contains_key(name) {
            self.required(name)?;
        }
        match self.text(name, chars_max)? {
            Some(text) => Ok(text),
            None => self.wrong(name, "be string"),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, AshError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => self.wrong(name, "be boolean"),
        }
    }

    pub(super) fn one_of(
        &mut self,
        name: &str,
        words: &[&'static str],
    ) -> Result<Option<&'static str>, AshError> {
        let Some(given) = self.take(name) else { return Ok(None) };
        match words.iter().find(|word| given == **word) {
            Some(word) => Ok(Some(word)),
            None => self.wrong(name, format_args!("be one of {}", words.join(", "))),
        }
    }

    /// A whole number within bounds.
    pub(super) fn number(
        &mut self,
        name: &str,
        least: u64,
        most: u64,
    ) -> Result<Option<u64>, AshError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
                Some(_) | None => {
                    self.wrong(name, format_args!("be an integer from {least} to {most}"))
                }
            },
        }
    }

    /// A number that is not negative.
    pub(super) fn amount(&mut self, name: &str) -> Result<Option<Value>, AshError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) if value.as_f64().is_some_and(|amount| amount >= 0.0) => Ok(Some(value)),
            Some(_) => self.wrong(name, "be number >= 0"),
        }
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, AshError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => self.wrong(name, "be object"),
        }
    }

    pub(super) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, AshError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => self.wrong(name, "be array"),
        }
    }

    pub(super) fn texts(&mut self, name: &str) -> Result<Option<Vec<Value>>, AshError> {
        match self.list(name)? {
            Some(list) if !list.iter().all(Value::is_string) => {
                self.wrong(name, "have only string items")
            }
            list => Ok(list),
        }
    }

    /// Names and texts, such as an environment.
    pub(super) fn map_of_texts(
        &mut self,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, AshError> {
        let Some(map) = self.object(name)? else { return Ok(None) };
        let texts = map.into_iter().map(|(key, value)| match value {
            Value::String(text) => Ok((key, text)),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => self.wrong(&format!("{name}/{key}"), "be string"),
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// Refuses what was not taken: a client must not believe that it has an effect.
    pub(super) fn refuse_rest(&self) -> Result<(), AshError> {
        let left = self.map.iter().find(|(_, value)| !value.is_null());
        left.map_or(Ok(()), |(name, _)| {
            let cause = format!("{} must NOT have additional properties: {name}", self.at);
            Err(AshError::invalid(cause))
        })
    }

    /// Everything that was not taken.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.map
    }
}

/// What a path names.
pub(super) struct At<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = AshError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AshError> {
        let named = Path::<T>::from_request_parts(parts, state).await;
        // The only way to fail is a part that is not UTF-8.
        named.map(|Path(named)| Self(named)).map_err(|_| AshError::invalid("params must be UTF-8"))
    }
}

/// The id of a session in a path.
pub(super) fn session_id(text: &str) -> Result<SessionId, AshError> {
    // A UUID has other forms, which are none of Ash's.
    let is_plain = text.len() == 36;
    let id = text.parse().ok().filter(|_| is_plain);
    id.ok_or_else(|| AshError::invalid("params/id must match format \"uuid\""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::inner(value, "body").unwrap_or_else(|error| panic!("{error:?}"))
    }

    fn error_text<T: std::fmt::Debug>(result: Result<T, AshError>) -> String {
        format!("{:?}", result.unwrap_err())
    }

    #[test]
    fn fields_are_taken_by_name_and_kind() {
        let mut f = fields(json!({
            "a": "x", "n": 3, "b": true, "o": {"k": "v"}, "l": ["p"], "e": "low", "u": 1.5,
            "nothing": null, "more": 1,
        }));
        assert_eq!(f.text("a", 1).unwrap().as_deref(), Some("x"));
        assert_eq!(f.number("n", 1, 3).unwrap(), Some(3));
        assert_eq!(f.flag("b").unwrap(), Some(true));
        assert_eq!(f.map_of_texts("o").unwrap().unwrap()["k"], "v");
        assert_eq!(f.texts("l").unwrap().unwrap(), [json!("p")]);
        assert_eq!(f.one_of("e", &["low", "high"]).unwrap(), Some("low"));
        assert_eq!(f.amount("u").unwrap(), Some(json!(1.5)));
        assert_eq!(f.text("nothing", 1).unwrap(), None);
        assert_eq!(f.text("never", 1).unwrap(), None);
        let refused = error_text(f.refuse_rest());
        assert!(refused.contains("body must NOT have additional properties: more"), "{refused}");
        assert_eq!(f.rest().len(), 1);
        assert!(fields(json!({"nothing": null})).refuse_rest().is_ok());
    }

    #[test]
    fn wrong_fields_are_named() {
        let bad = || {
            fields(
                json!({"a": "xx", "n": -1, "o": {"k": 1}, "l": [1], "e": "?", "u": -1, "z": null}),
            )
        };
        assert!(
            error_text(bad().text("a", 1)).contains("body/a must NOT have more than 1 characters")
        );
        assert!(error_text(bad().text("n", 1)).contains("body/n must be string"));
        assert!(
            error_text(bad().number("n", 0, 9)).contains("body/n must be an integer from 0 to 9")
        );
        assert!(error_text(bad().flag("a")).contains("body/a must be boolean"));
        assert!(error_text(bad().map_of_texts("o")).contains("body/o/k must be string"));
        assert!(error_text(bad().texts("l")).contains("body/l must have only string items"));
        assert!(error_text(bad().list("a")).contains("body/a must be array"));
        assert!(error_text(bad().one_of("e", &["low"])).contains("body/e must be one of low"));
        assert!(error_text(bad().amount("u")).contains("body/u must be number >= 0"));
        assert!(
            error_text(bad().required_text("q", 1)).contains("must have required property 'q'")
        );
        assert!(error_text(bad().required_text("z", 1)).contains("body/z must be string"));
    }

    #[test]
    fn session_id_is_a_uuid_with_dashes() {
        assert!(session_id("00000000-0000-0000-0000-000000000007").is_ok());
        for bad in
            ["", "7", "00000000000000000000000000000007", "{00000000-0000-0000-0000-000000000007}"]
        {
            assert!(error_text(session_id(bad)).contains("uuid"), "{bad}");
        }
    }
}
