//! Extended headers: `LENGTH KEY=VALUE\n`, one after the other.

use crate::error::TarError;
use crate::sparse::{self, Region};
use crate::{ATTRIBUTE, Attribute};

/// The known records of the extended headers of one entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pax {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) user: Option<u64>,
    pub(crate) group: Option<u64>,
    pub(crate) modified: Option<(i64, u32)>,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) has_attributes: bool,
    pub(crate) sparse: PaxSparse,
}

/// Sparse information, in the three forms of GNU tar.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PaxSparse {
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) real_size: Option<u64>,
    /// The map is in the contents, not here.
    pub(crate) map_in_data: bool,
    pub(crate) map: Vec<Region>,
    offset: Option<u64>,
}

type Record<'a> = (&'a [u8], &'a [u8], &'a [u8]);

fn record(records: &[u8]) -> Option<Record<'_>> {
    let space = records.iter().position(|&byte| byte == b' ')?;
    let length = decimal(&records[..space])?;
    let (whole, rest) = records.split_at_checked(usize::try_from(length).ok()?)?;
    let (end, pair) = whole.get(space + 1..)?.split_last()?;
    let equals = pair.iter().position(|&byte| byte == b'=')?;
    (*end == b'\n').then_some((&pair[..equals], &pair[equals + 1..], rest))
}

impl Pax {
    /// Reads the records of one header. They override those of earlier headers.
    pub(crate) fn read(&mut self, mut records: &[u8]) -> Result<(), TarError> {
        while !records.is_empty() {
            let (key, value, rest) = record(records)
                .ok_or_else(|| TarError::broken("an extended header cannot be parsed"))?;
            self.take(key, value)?;
            records = rest;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), TarError> {
        let wrong = || {
            let key = String::from_utf8_lossy(key).into_owned();
            TarError::broken(format!("{key} of an extended header"))
        };
        let number = || decimal(value).ok_or_else(wrong);
        let holes = &mut self.sparse;
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.target = Some(value.to_vec()),
            b"size" => self.size = Some(number()?),
            b"uid" => self.user = Some(number()?),
            b"gid" => self.group = Some(number()?),
            b"mtime" => self.modified = moment(value),
            b"GNU.sparse.major" => holes.map_in_data = number()? == 1,
            b"GNU.sparse.name" => holes.name = Some(value.to_vec()),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => holes.real_size = Some(number()?),
            b"GNU.sparse.offset" => holes.offset = Some(number()?),
            b"GNU.sparse.numbytes" => {
                let offset = holes.offset.take().ok_or_else(wrong)?;
                sparse::add(&mut holes.map, Region { offset, length: number()? })?;
            }
            b"GNU.sparse.map" => {
                let mut numbers = value.split(|&byte| byte == b',').map(decimal);
                while let Some(offset) = numbers.next() {
                    let (offset, length) =
                        offset.zip(numbers.next().flatten()).ok_or_else(wrong)?;
                    sparse::add(&mut holes.map, Region { offset, length })?;
                }
            }
            key => {
                self.has_attributes |= is_attribute(key);
                if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                    self.attributes.push((name.into(), value.into()));
                }
            }
        }
        Ok(())
    }
}

fn is_attribute(key: &[u8]) -> bool {
    [ATTRIBUTE, b"LIBARCHIVE.xattr.", b"SCHILY.acl.", b"RHT.security."]
        .iter()
        .any(|prefix| key.starts_with(prefix))
}

/// Digits only, as these headers require.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Seconds with a fraction, to the nanosecond.
fn moment(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    Some(match (whole.starts_with('-'), nanoseconds) {
        (true, 1..) => (seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds),
        (_, nanoseconds) => (seconds, nanoseconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(records: &[u8]) -> Result<Pax, TarError> {
        let mut pax = Pax::default();
        pax.read(records)?;
        Ok(pax)
    }

    #[test]
    fn known_pax_records_are_read_and_others_skipped() {
        let pax = parse(b"12 path=a/b\n20 comment=anything\n17 mtime=12.5000\n11 size=77\n");
        let pax = pax.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(pax.path.as_deref(), Some(&b"a/b"[..]));
        assert_eq!((pax.size, pax.modified), (Some(77), Some((12, 500_000_000))));
        let holes = parse(b"28 GNU.sparse.map=0,1,512,3\n").unwrap().sparse;
        assert_eq!(holes.map, [Region { offset: 0, length: 1 }, Region { offset: 512, length: 3 }]);
        assert!(parse(b"30 SCHILY.xattr.user.overlay=x\n").is_err(), "a wrong length");
        let noted = parse(b"31 SCHILY.xattr.user.overlay=x\n").unwrap();
        assert!(noted.has_attributes);
        assert_eq!(noted.attributes, [(b"user.overlay"[..].into(), b"x"[..].into())]);
    }

    #[test]
    fn invalid_pax_records_are_refused() {
        let cases: &[&[u8]] = &[
            b"x",
            b"5 a=b",
            b"999999999999999999999 a=b\n",
            b"3 a\n",
            b"2 a=b\n",
            b"1 a=b\n",
            b"0 a=b\n",
            b"8 ab=c\n",
            b"11 size=-1\n",
            b"11 size=+1\n",
            b"26 GNU.sparse.map=5,1,2,1\n",
            b"25 GNU.sparse.numbytes=1\n",
        ];
        for case in cases {
            assert!(parse(case).is_err(), "{}", String::from_utf8_lossy(case));
        }
    }

    #[test]
    fn pax_times_before_the_epoch_are_read() {
        assert_eq!(moment(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(moment(b"1.0000000001"), Some((1, 0)));
        assert_eq!(moment(b"x"), None);
    }
}
