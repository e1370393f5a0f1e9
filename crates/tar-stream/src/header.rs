//! One block of 512 bytes: the header of an entry, as the three old formats have it.

use crate::BLOCK;
use crate::error::TarError;

/// A header as stored: earlier extension headers are not applied yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) path: Vec<u8>,
    pub(crate) target: Vec<u8>,
    pub(crate) letter: u8,
    pub(crate) mode: u32,
    pub(crate) user: Option<u64>,
    pub(crate) group: Option<u64>,
    pub(crate) size: u64,
    pub(crate) modified_s: i64,
}

/// Parses one. `None` is a block of zeros, the end of an archive.
pub(crate) fn parse(block: &[u8; BLOCK]) -> Result<Option<Header>, TarError> {
    if block.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    if !checksum_fits(block) {
        return Err(TarError::broken("a header is damaged, or the data is not a tar archive"));
    }
    let positive =
        |range: std::ops::Range<usize>| number(&block[range]).and_then(|n| u64::try_from(n).ok());
    let wrong = |what: &str| TarError::broken(format!("the {what} of a tar header is wrong"));
    let mut path = text(&block[..100]).to_vec();
    // GNU keeps other data where ustar keeps the beginning of long names.
    let prefix = text(&block[345..500]);
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        path = [prefix, b"/", &path].concat();
    }
    Ok(Some(Header {
        path,
        target: text(&block[157..257]).to_vec(),
        letter: block[156],
        mode: (positive(100..108).ok_or_else(|| wrong("mode"))? & 0o7777) as u32,
        // An unreadable owner or time is no reason to refuse the entry.
        user: positive(108..116),
        group: positive(116..124),
        size: positive(124..136).ok_or_else(|| wrong("size"))?,
        modified_s: number(&block[136..148]).unwrap_or(0),
    }))
}

/// The text up to the first zero.
pub(crate) fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A number: octal digits, or base 256 for large numbers. An empty field is 0.
pub(crate) fn number(field: &[u8]) -> Option<i64> {
    let (&first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        let negative = first & 0x40 != 0;
        // The highest bit marks the format, the next one is the sign.
        let start = if negative { i128::from(first) - 256 } else { i128::from(first & 0x3f) };
        let value = rest.iter().try_fold(start, |value, &byte| {
            value.checked_mul(256).map(|value| value + i128::from(byte))
        })?;
        return i64::try_from(value).ok();
    }
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0_i64, |value, &digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

/// Some old programs summed signed bytes.
fn checksum_fits(block: &[u8; BLOCK]) -> bool {
    let Some(expected) = number(&block[148..156]) else { return false };
    let blanked = |at: usize, byte: u8| if (148..156).contains(&at) { b' ' } else { byte };
    let bytes = || block.iter().enumerate().map(|(at, &byte)| blanked(at, byte));
    let unsigned: i64 = bytes().map(i64::from).sum();
    let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
    expected == unsigned || expected == signed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_numbers_are_read_in_both_formats() {
        let cases: &[(&[u8], Option<i64>)] = &[
            (b"0000644\0", Some(0o644)),
            (b"    644 ", Some(0o644)),
            (b"\0\0\0\0", Some(0)),
            (b"777", Some(0o777)),
            (b"0000648\0", None),
            (b"-1\0", None),
            (&[0x80, 0, 0, 0, 2, 0, 0, 0], Some(2 << 24)),
            (&[0xff; 12], Some(-1)),
            (&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], None),
        ];
        for (field, expected) in cases {
            assert_eq!(number(field), *expected, "{field:?}");
        }
    }

    #[test]
    fn a_tar_header_is_what_the_tar_crate_wrote() {
        let mut written = tar::Header::new_ustar();
        written.set_path("a/b").unwrap();
        written.set_mode(0o4755);
        written.set_uid(1000);
        written.set_gid(7);
        written.set_size(123);
        written.set_mtime(99);
        written.set_entry_type(tar::EntryType::Symlink);
        written.set_link_name("x").unwrap();
        written.set_cksum();
        let header = parse(written.as_bytes()).unwrap().unwrap();
        assert_eq!((header.path.as_slice(), header.target.as_slice()), (&b"a/b"[..], &b"x"[..]));
        assert_eq!((header.mode, header.user, header.group), (0o4755, Some(1000), Some(7)));
        assert_eq!((header.size, header.modified_s, header.letter), (123, 99, b'2'));
        assert_eq!(parse(&[0; BLOCK]).unwrap(), None);
        let mut damaged = *written.as_bytes();
        damaged[0] ^= 1;
        assert!(parse(&damaged).is_err());
    }
}
