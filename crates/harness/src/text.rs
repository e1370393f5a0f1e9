//! Decodes bytes into text as they come: characters that are cut between two chunks are assembled,
//! and only what is not UTF-8 is replaced.

/// The most bytes of a character that may wait for the rest.
const PARTIAL_BYTES_MAX: usize = 3;

/// Turns bytes into text, chunk by chunk.
#[derive(Debug, Default)]
pub(crate) struct TextStream {
    /// The beginning of a character.
    partial: Vec<u8>,
}

impl TextStream {
    /// The text after these bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let joined;
        let bytes = if self.partial.is_empty() {
            bytes
        } else {
            joined = [std::mem::take(&mut self.partial).as_slice(), bytes].concat();
            &joined
        };
        let whole = bytes.len() - partial_bytes(bytes);
        self.partial.extend_from_slice(&bytes[whole..]);
        String::from_utf8_lossy(&bytes[..whole]).into_owned()
    }

    /// The rest at the end.
    pub(crate) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned()
    }
}

/// How many bytes at the end begin an incomplete character.
fn partial_bytes(bytes: &[u8]) -> usize {
    for count in 1..=PARTIAL_BYTES_MAX.min(bytes.len()) {
        let tail = &bytes[bytes.len() - count..];
        // Continuation bytes alone say nothing.
        if tail[0] & 0b1100_0000 == 0b1000_0000 {
            continue;
        }
        let is_cut = match std::str::from_utf8(tail) {
            Ok(_) => false,
            Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
        };
        return if is_cut { count } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn in_pieces(bytes: &[u8], at: usize) -> String {
        let mut text = TextStream::default();
        let mut said = text.push(&bytes[..at]);
        said += &text.push(&bytes[at..]);
        said + &text.finish()
    }

    #[test]
    fn characters_survive_every_cut() {
        let whole = "aé€😀\u{7ff}\u{10ffff}z";
        for at in 0..=whole.len() {
            assert_eq!(in_pieces(whole.as_bytes(), at), whole, "cut at {at}");
        }
        let mut text = TextStream::default();
        let one_by_one: String = whole.bytes().map(|byte| text.push(&[byte])).collect();
        assert_eq!(one_by_one, whole);
    }

    #[test]
    fn invalid_utf8_is_replaced_at_once_and_partial_at_the_end() {
        let mut text = TextStream::default();
        assert_eq!(text.push(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(text.push(b"\xe2\x82"), "");
        assert_eq!(text.finish(), "\u{fffd}");
        assert_eq!(text.finish(), "");
    }

    proptest! {
        #[test]
        fn text_pieces_decode_like_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(),
        ) {
            let at = at.index(bytes.len() + 1);
            prop_assert_eq!(in_pieces(&bytes, at), String::from_utf8_lossy(&bytes));
        }
    }
}
