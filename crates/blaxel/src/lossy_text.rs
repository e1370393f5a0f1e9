//! Output of a program as text: a character that is split between two pieces waits for its other
//! half. Bytes that are not UTF-8 become replacement characters.

/// The incomplete character at the end of the last read.
#[derive(Debug, Default)]
pub(super) struct LossyText {
    tail: Vec<u8>,
}

impl LossyText {
    /// The text that is complete with these bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.tail);
        all.extend_from_slice(bytes);
        if let Some(at) = begun(&all) {
            self.tail = all.split_off(at);
        }
        match String::from_utf8(all) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// The rest at the end: the start of a character that never arrived.
    pub(super) fn finish(&mut self) -> String {
        let tail = std::mem::take(&mut self.tail);
        String::from_utf8_lossy(&tail).into_owned()
    }
}

/// Where the last character begins, if only its start is there.
fn begun(bytes: &[u8]) -> Option<usize> {
    let from = bytes.len().saturating_sub(3);
    (from..bytes.len()).rev().find(|at| {
        let there = bytes.len() - at;
        match bytes[*at] {
            0xc2..=0xdf => there < 2,
            0xe0..=0xef => there < 3,
            0xf0..=0xf4 => there < 4,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_stays_text_however_it_is_cut(text in "\\PC{0,40}", cuts: [usize; 5]) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut pieces = LossyText::default();
            let mut joined: String =
                cuts.windows(2).map(|pair| pieces.push(&bytes[pair[0]..pair[1]])).collect();
            joined.push_str(&pieces.finish());
            prop_assert_eq!(joined, text);
        }

        #[test]
        fn lossy_text_holds_back_at_most_one_character(bytes: Vec<u8>) {
            let mut pieces = LossyText::default();
            let _ = pieces.push(&bytes);
            prop_assert!(pieces.tail.len() < 4);
        }
    }

    #[test]
    fn lossy_text_does_not_wait_for_invalid_bytes() {
        let mut pieces = LossyText::default();
        assert_eq!(pieces.push(b"a\xff"), "a\u{fffd}");
        assert_eq!(pieces.push(b"\xe2\x82"), "");
        assert_eq!(pieces.push(b"\xac!"), "€!");
        assert_eq!(pieces.push(b"\xc3"), "");
        assert_eq!(pieces.finish(), "\u{fffd}");
    }
}
