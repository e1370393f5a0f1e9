//! The name of an image in the store. Its identity is an [`ImageId`].

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::ImageId;

/// The name of an image: 1 to 128 of `a-z 0-9 . _ - :`, starting with a letter or digit, and
/// nothing that could be an [`ImageId`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^[a-z0-9][a-z0-9._:-]{0,127}$"))]
pub struct ImageName(Arc<str>);

impl ImageName {
    /// Longest name accepted.
    pub const MAX_LEN: usize = 128;

    /// Checks and wraps a name.
    pub fn new(name: &str) -> Result<Self, ImageNameError> {
        let head_ok = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let tail_ok = |c: u8| head_ok(c) || matches!(c, b'.' | b'_' | b'-' | b':');
        let bytes = name.as_bytes();
        if bytes.len() > Self::MAX_LEN
            || !bytes.first().copied().is_some_and(head_ok)
            || !bytes.iter().copied().all(tail_ok)
            || name.parse::<ImageId>().is_ok()
        {
            return Err(ImageNameError);
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that cannot name an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an image name is 1 to 128 of a-z 0-9 . _ - : and starts with a letter or digit")]
pub struct ImageNameError;

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageName({})", self.0)
    }
}

impl TryFrom<String> for ImageName {
    type Error = ImageNameError;

    fn try_from(name: String) -> Result<Self, ImageNameError> {
        Self::new(&name)
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> Self {
        name.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_are_names_of_files_and_no_ids() {
        for good in ["a", "debian:12", "python-3.11_slim", &"x".repeat(128), &"a".repeat(63)] {
            assert!(ImageName::new(good).is_ok(), "{good} should be accepted");
        }
        let long = "x".repeat(129);
        let id = "a".repeat(64);
        for bad in ["", "A", ".a", ":a", "a/b", "a b", "ä", "..", "a\n", &long, &id] {
            assert_eq!(ImageName::new(bad), Err(ImageNameError), "{bad} should be refused");
        }
    }
}
