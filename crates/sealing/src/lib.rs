//! Encryption at rest. Sealed data can be read only with the key of the node, and only in the
//! location it was sealed for: the envelope of one row does not open in another.
//!
//! A crate of its own, so that other crates can seal data without a database: it knows no files and
//! no tables. An envelope is a version (1 byte), the id of the key (8), a random nonce (24) and the
//! ciphertext with its tag (XChaCha20-Poly1305). Nothing here may print or log a key or sealed
//! data.

use std::fmt;

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{Key, KeyInit as _, XChaCha20Poly1305, XNonce};
use sha2::{Digest as _, Sha256};

/// The version of new envelopes.
const VERSION: u8 = 1;
const KEY_ID_BYTES: usize = 8;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = 1 + KEY_ID_BYTES + NONCE_BYTES;

/// How much longer an envelope is than its contents.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;

/// Length of the secret part of a key.
pub const SECRET_BYTES: usize = 32;

/// The key of a node. It is never printed.
#[derive(Clone)]
pub struct NodeKey {
    cipher: XChaCha20Poly1305,
    id: [u8; KEY_ID_BYTES],
}

/// The location of sealed data. The tag of an envelope covers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(Vec<u8>);

/// Why sealing or opening failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The operating system gave no random numbers.
    #[error("the machine gives no random numbers")]
    Random,
    /// The data is too short, or of an unknown version.
    #[error("it is not an envelope that this program knows")]
    NotAnEnvelope,
    /// The envelope was made with another key.
    #[error("it was sealed with another key")]
    AnotherKey,
    /// The contents were changed, or the envelope was sealed for another location.
    #[error("it was changed, or belongs elsewhere")]
    Changed,
}

impl Place {
    /// A table, or another collection.
    pub fn new(table: &str) -> Self {
        Self(Vec::with_capacity(64)).and(table.as_bytes())
    }

    /// Adds a part that tells it from other locations. Each part has its length in front, so that
    /// no two lists of parts give the same bytes.
    #[must_use]
    pub fn and(mut self, part: &[u8]) -> Self {
        self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.0.extend_from_slice(part);
        self
    }
}

impl NodeKey {
    /// The key with this secret.
    pub fn from_secret(secret: &[u8; SECRET_BYTES]) -> Self {
        let digest = Sha256::new().chain_update(b"shoal node key id").chain_update(secret);
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(&digest.finalize()[..KEY_ID_BYTES]);
        Self { cipher: XChaCha20Poly1305::new(&Key::from(*secret)), id }
    }

    /// Tells it from other keys, without revealing its secret.
    pub const fn id(&self) -> [u8; KEY_ID_BYTES] {
        self.id
    }

    /// Seals data for a location.
    pub fn seal(&self, place: &Place, clear: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| SealError::Random)?;
        let payload = Payload { msg: clear, aad: &place.0 };
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), payload);
        // The cipher refuses only data that is too long to be stored.
        let sealed = sealed.map_err(|_| SealError::NotAnEnvelope)?;
        let mut envelope = Vec::with_capacity(HEAD_BYTES + sealed.len());
        envelope.push(VERSION);
        envelope.extend_from_slice(&self.id);
        envelope.extend_from_slice(&nonce);
        envelope.extend_from_slice(&sealed);
        Ok(envelope)
    }

    /// Opens an envelope in its location.
    pub fn open(&self, place: &Place, envelope: &[u8]) -> Result<Vec<u8>, SealError> {
        let (head, sealed) =
            envelope.split_at_checked(HEAD_BYTES).ok_or(SealError::NotAnEnvelope)?;
        let (version, head) = head.split_at(1);
        if version != [VERSION] {
            return Err(SealError::NotAnEnvelope);
        }
        let (id, nonce) = head.split_at(KEY_ID_BYTES);
        if id != self.id {
            return Err(SealError::AnotherKey);
        }
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().map_err(|_| SealError::NotAnEnvelope)?;
        let payload = Payload { msg: sealed, aad: &place.0 };
        self.cipher.decrypt(&XNonce::from(nonce), payload).map_err(|_| SealError::Changed)
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> NodeKey {
        NodeKey::from_secret(&[byte; SECRET_BYTES])
    }

    #[test]
    fn an_envelope_opens_with_its_key_and_in_its_location_only() {
        let place = Place::new("sessions").and(b"1");
        let envelope = key(1).seal(&place, b"hunter2").unwrap();
        assert_eq!(envelope.len(), b"hunter2".len() + OVERHEAD_BYTES);
        assert!(!envelope.windows(7).any(|part| part == b"hunter2"));
        assert_eq!(key(1).open(&place, &envelope).unwrap(), b"hunter2");
        assert_ne!(envelope, key(1).seal(&place, b"hunter2").unwrap(), "nonces differ");

        assert_eq!(key(2).open(&place, &envelope), Err(SealError::AnotherKey));
        for elsewhere in [
            Place::new("sessions").and(b"2"),
            Place::new("turns").and(b"1"),
            Place::new("sessions"),
            Place::new("sessions").and(b"").and(b"1"),
        ] {
            assert_eq!(key(1).open(&elsewhere, &envelope), Err(SealError::Changed));
        }
    }

    #[test]
    fn no_byte_of_an_envelope_can_be_changed_or_left_out() {
        let place = Place::new("turns").and(b"1");
        let envelope = key(1).seal(&place, b"a").unwrap();
        for at in 0..envelope.len() {
            let mut changed = envelope.clone();
            changed[at] ^= 1;
            assert!(key(1).open(&place, &changed).is_err(), "byte {at}");
            assert!(key(1).open(&place, &envelope[..at]).is_err(), "{at} bytes of it");
        }
    }

    #[test]
    fn locations_differ_by_their_parts() {
        let place = |parts: &[&str]| {
            parts.iter().fold(Place::new("t"), |place, part| place.and(part.as_bytes()))
        };
        assert_ne!(place(&["ab", "c"]), place(&["a", "bc"]));
        assert_ne!(place(&["abc"]), place(&["ab", "c"]));
    }

    #[test]
    fn a_node_key_is_never_printed() {
        let shown = format!("{:?}", key(0xab));
        assert_eq!(shown, "NodeKey { .. }");
    }
}
