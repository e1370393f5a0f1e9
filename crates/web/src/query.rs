//! The query of a request. Each parameter is taken by name; one that is left over, given twice or
//! of the wrong form is refused by name, so that a typing error is never ignored.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use axum::extract::FromRequestParts;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use crate::refused::Refused;

/// More parameters than any route has.
const PAIRS_MAX: usize = 64;

/// The parameters that were not taken yet.
#[derive(Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

/// A request without parameters.
#[derive(Debug)]
pub struct NoQuery;

impl Query {
    fn parse(text: &str) -> Result<Self, Refused> {
        let mut pairs = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() == PAIRS_MAX {
                return Err(Refused::bad(
                    "query",
                    format!("the query has more than {PAIRS_MAX} parameters"),
                ));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode(name)?, decode(value)?));
        }
        Ok(Self { pairs })
    }

    /// Every value of a parameter that may be repeated.
    pub fn all(&mut self, name: &str) -> Vec<String> {
        let taken = self.pairs.extract_if(.., |(known, _)| known == name);
        taken.map(|(_, value)| value).collect()
    }

    /// Every parameter whose name begins so, by the rest of its name.
    pub fn all_beneath(&mut self, beginning: &str) -> Vec<(String, String)> {
        let taken = self.pairs.extract_if(.., |(known, _)| known.starts_with(beginning));
        taken.map(|(name, value)| (name[beginning.len()..].to_owned(), value)).collect()
    }

    /// A parameter as it is.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, Refused> {
        let mut values = self.all(name);
        match (values.pop(), values.is_empty()) {
            (value, true) => Ok(value),
            (_, false) => Err(Refused::bad(name, format!("`{name}` is given more than once"))),
        }
    }

    /// A parameter that must be there.
    pub fn required(&mut self, name: &'static str) -> Result<String, Refused> {
        let missing = || Refused::bad(name, format!("the parameter `{name}` is missing"));
        self.text(name)?.ok_or_else(missing)
    }

    /// A parameter that is read as something else.
    pub fn parsed<T: FromStr<Err: Display>>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<T>, Refused> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let wrong = |error| Refused::bad(name, format!("`{name}`: {error}"));
        text.parse().map(Some).map_err(wrong)
    }

    /// A number within bounds.
    pub fn number(
        &mut self,
        name: &'static str,
        bounds: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Refused> {
        let Some(number) = self.parsed::<u64>(name)? else { return Ok(None) };
        if bounds.contains(&number) {
            return Ok(Some(number));
        }
        let (least, most) = bounds.into_inner();
        Err(Refused::bad(name, format!("`{name}` must be from {least} to {most}")))
    }

    /// A parameter that is on or off; given without a value it is on.
    pub fn flag(&mut self, name: &'static str) -> Result<bool, Refused> {
        match self.text(name)?.as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(_) => Err(Refused::bad(name, format!("`{name}` must be true or false"))),
        }
    }

    /// Refuses parameters that the route did not take.
    pub fn done(self) -> Result<(), Refused> {
        match self.pairs.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => {
                let cause = format!("the route has no parameter `{name}`");
                Err(Refused::bad(name, cause))
            }
        }
    }
}

/// Plus signs are spaces, as in forms. What is not UTF-8 cannot be a name of anything here.
fn decode(text: &str) -> Result<String, Refused> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    let wrong = |_| Refused::bad("query", format!("`{text}` is not UTF-8 after decoding"));
    decoded.map(std::borrow::Cow::into_owned).map_err(wrong)
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        parts.uri.query().map_or_else(|| Ok(Self::default()), Self::parse)
    }
}

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        match parts.uri.query() {
            None => Ok(Self),
            Some(text) => Query::parse(text)?.done().map(|()| Self),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(text).unwrap()
    }

    fn blamed<T: std::fmt::Debug>(result: Result<T, Refused>) -> String {
        result.unwrap_err().field.unwrap().into_owned()
    }

    #[test]
    fn query_parameters_are_taken_by_name() {
        let mut q = query("path=%2Fa%20b%2Bc+d&force&limit=5&label=a%3Db&label=c%3Dd&");
        assert_eq!(q.required("path").unwrap(), "/a b+c d");
        assert!(q.flag("force").unwrap());
        assert_eq!(q.number("limit", 1..=10).unwrap(), Some(5));
        assert_eq!(q.all("label"), ["a=b", "c=d"]);
        assert_eq!(q.text("after").unwrap(), None);
        q.done().unwrap();
        let mut q = query("metadata.user=ada&metadata.=x&meta=y");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(q.all_beneath("metadata."), [pair("user", "ada"), pair("", "x")]);
        assert_eq!(blamed(q.done()), "meta");
    }

    #[test]
    fn query_parameters_are_refused_by_name() {
        assert_eq!(blamed(query("a=1&b=2").done()), "a");
        assert_eq!(blamed(query("a=1&a=2").text("a")), "a");
        assert_eq!(blamed(query("").required("path")), "path");
        assert_eq!(blamed(query("force=maybe").flag("force")), "force");
        for bad in ["limit=0", "limit=11", "limit=-1", "limit=x", "limit=", "limit=1e2"] {
            assert_eq!(blamed(query(bad).number("limit", 1..=10)), "limit", "{bad}");
        }
        assert_eq!(blamed(Query::parse("a=%ff")), "query");
        assert_eq!(blamed(Query::parse(&"a&".repeat(PAIRS_MAX + 1))), "query");
        assert!(Query::parse(&"a&".repeat(PAIRS_MAX)).is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC*") {
            let _ = Query::parse(&text);
        }
    }
}
