//! Output of a program as text: a character that is split between two reads waits for its other
//! half, so that it is neither broken nor sent as base64.

use wire::Output;

/// The longest start of a character that can be incomplete.
const TAIL_MAX: usize = 3;

/// The incomplete character at the end of the last read.
#[derive(Debug, Default)]
pub struct Utf8Chunks {
    tail: Vec<u8>,
}

impl Utf8Chunks {
    /// The output that is complete with these bytes.
    pub fn push(&mut self, read: &[u8]) -> Option<Output> {
        let mut bytes = std::mem::take(&mut self.tail);
        bytes.extend_from_slice(read);
        if let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
        {
            // Valid up to a character that has only begun.
            self.tail = bytes.split_off(error.valid_up_to());
            debug_assert!(self.tail.len() <= TAIL_MAX);
        }
        (!bytes.is_empty()).then(|| Output::new(bytes))
    }

    /// The rest at the end: the start of a character that never arrived.
    pub fn finish(&mut self) -> Option<Output> {
        let tail = std::mem::take(&mut self.tail);
        (!tail.is_empty()).then(|| Output::new(tail))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Output> {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut pieces = Utf8Chunks::default();
        let mut outputs: Vec<_> =
            cuts.windows(2).filter_map(|pair| pieces.push(&bytes[pair[0]..pair[1]])).collect();
        outputs.extend(pieces.finish());
        outputs
    }

    proptest! {
        #[test]
        fn output_chunks_of_text_are_text(text in "\\PC{0,40}", cuts: [usize; 5]) {
            let outputs = cut(text.as_bytes(), &cuts);
            prop_assert!(outputs.iter().all(|output| output.data.is_some()));
            let joined: String = outputs.into_iter().filter_map(|output| output.data).collect();
            prop_assert_eq!(joined, text);
        }

        #[test]
        fn output_chunks_lose_no_byte(bytes: Vec<u8>, cuts: [usize; 5]) {
            let outputs = cut(&bytes, &cuts);
            let joined: Vec<u8> = outputs.iter().flat_map(|o| o.bytes().unwrap()).collect();
            prop_assert_eq!(joined, bytes);
        }
    }

    #[test]
    fn output_that_is_not_utf8_is_base64_at_once() {
        let mut pieces = Utf8Chunks::default();
        assert_eq!(pieces.push(b"a\xff").unwrap().data, None);
        assert_eq!(pieces.push(b"\xc3"), None);
        assert_eq!(pieces.push(b"\xbc").unwrap().data.as_deref(), Some("ü"));
        assert_eq!(pieces.push(b"x\xe2\x82").unwrap().data.as_deref(), Some("x"));
        assert_eq!(pieces.finish().unwrap().bytes().unwrap(), b"\xe2\x82");
        assert_eq!(pieces.finish(), None);
    }
}
