//! Paths with parameters, escaped.

use std::fmt::Write as _;

/// A path and its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    text: String,
    has_query: bool,
}

impl Target {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { text: path.into(), has_query: false }
    }

    /// One more part of the path, which may hold anything.
    #[must_use]
    pub(crate) fn part(mut self, part: &str) -> Self {
        self.text.push('/');
        escape(part, &mut self.text);
        self
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.text.push(if self.has_query { '&' } else { '?' });
        self.has_query = true;
        escape(name, &mut self.text);
        self.text.push('=');
        escape(value.as_ref(), &mut self.text);
        self
    }

    #[must_use]
    pub(crate) fn maybe(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, value.to_string()),
            None => self,
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Without parameters, which may hold secrets.
    pub(crate) fn path(&self) -> &str {
        self.text.split('?').next().unwrap_or(&self.text)
    }
}

fn escape(text: &str, to: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            to.push(char::from(byte));
        } else {
            let _ = write!(to, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_paths_are_escaped() {
        let target = Target::new("/v1").part("a/b").with("path", "/ä b&c=d").maybe("n", Some(3));
        assert_eq!(target.as_str(), "/v1/a%2Fb?path=%2F%C3%A4%20b%26c%3Dd&n=3");
        assert_eq!(target.path(), "/v1/a%2Fb");
        assert_eq!(Target::new("/v1").maybe("n", None::<u8>).as_str(), "/v1");
    }
}
