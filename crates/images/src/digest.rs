//! SHA-256 as a name: of a layer (its uncompressed archive), of a blob, of an image.

use std::fmt;
use std::str::FromStr;

use model::ImageId;
use sha2::{Digest as _, Sha256};

/// A SHA-256, shown as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads `sha256:HEX`, as images name their parts. Other algorithms are `None`.
    pub(crate) fn from_reference(text: &str) -> Option<Self> {
        text.strip_prefix("sha256:")?.parse().ok()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ImageId::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = <ImageId as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(|id: ImageId| Self(*id.as_bytes()))
    }
}

/// A digest of bytes that are still coming.
#[derive(Clone, Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_that_everyone_computes() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(hasher.finish(), Digest::of(b"abc"));
        assert_eq!(Digest::from_reference(&format!("sha256:{empty}")), Some(Digest::of(b"")));
        for bad in [empty, "sha512:00", "sha256:", &format!("sha256:{empty}0")] {
            assert_eq!(Digest::from_reference(bad), None, "{bad}");
        }
    }
}
