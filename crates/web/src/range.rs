//! The `Range` header. Only one range: a request for several gets the whole file,
//! as the standard allows.

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// From this byte on, up to and with the last one if it is given.
    From {
        /// The first byte.
        first: u64,
        /// The last one, if it was named.
        last: Option<u64>,
    },
    /// So many at the end.
    Last(u64),
}

/// The part that a `Range` header asks for; none if it is to be ignored.
pub fn part(header: &str) -> Option<Part> {
    let (unit, range) = header.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.trim().split_once('-')?;
    let number = |text: &str| {
        let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        fits.then(|| text.parse::<u64>().ok()).flatten()
    };
    match (first, last) {
        ("", last) => number(last).map(Part::Last),
        (first, "") => number(first).map(|first| Part::From { first, last: None }),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            // A length must be a number too.
            let fits = first <= last && last - first < u64::MAX;
            fits.then_some(Part::From { first, last: Some(last) })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn single_range_is_read_and_others_are_ignored() {
        let from = |first, last| Some(Part::From { first, last });
        for (header, expected) in [
            ("bytes=0-4", from(0, Some(4))),
            ("bytes=5-", from(5, None)),
            ("bytes=-3", Some(Part::Last(3))),
            ("bytes=-0", Some(Part::Last(0))),
            ("Bytes = 1-1", from(1, Some(1))),
            ("bytes=4-3", None),
            ("bytes=0-1,3-4", None),
            ("bytes=", None),
            ("bytes=-", None),
            ("bytes=a-b", None),
            ("bytes=+1-2", None),
            ("lines=1-2", None),
            ("bytes=0-18446744073709551615", None),
            ("bytes=0-99999999999999999999", None),
            ("", None),
        ] {
            assert_eq!(part(header), expected, "{header}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_understood_or_ignored(header in "(bytes=)?[0-9,-]{0,45}") {
            if let Some(Part::From { first, last: Some(last) }) = part(&header) {
                prop_assert!((last - first).checked_add(1).is_some());
            }
        }
    }
}
