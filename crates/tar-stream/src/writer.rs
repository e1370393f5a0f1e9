//! Writes one entry of an archive: the old form that every program reads, and an extended header
//! before it where names are long, files are large, or there is a comment. The same entry always
//! gives the same bytes: seed archives are named by their digest.

use crate::{ATTRIBUTE, Attribute, BLOCK, Kind, padding};

const NAME_BYTES: usize = 100;
/// The largest number of eleven octal digits.
const SIZE_MAX: u64 = 0o777_7777_7777;
/// The largest number of seven octal digits.
const ID_MAX: u32 = 0o777_7777;

/// Ends an archive.
pub fn end(to: &mut Vec<u8>) {
    to.resize(to.len() + 2 * BLOCK, 0);
}

/// One entry.
#[derive(Debug)]
pub struct NewEntry<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its path; that of a directory ends with a slash.
    pub path: &'a [u8],
    /// Its permissions.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// How many bytes of contents follow.
    pub size: u64,
    /// When it was last written, in seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// The target of a link.
    pub target: &'a [u8],
    /// User attributes.
    pub attributes: &'a [Attribute],
    /// A comment.
    pub comment: Option<String>,
}

impl NewEntry<'_> {
    /// Writes the headers of the entry.
    pub fn write(&self, to: &mut Vec<u8>) {
        let mut extended = Vec::new();
        if self.path.len() > NAME_BYTES {
            record(&mut extended, b"path", self.path);
        }
        if self.target.len() > NAME_BYTES {
            record(&mut extended, b"linkpath", self.target);
        }
        if self.size > SIZE_MAX {
            record(&mut extended, b"size", self.size.to_string().as_bytes());
        }
        let (user, group) = self.owner;
        for (key, id) in [("uid", user), ("gid", group)] {
            if id > ID_MAX {
                record(&mut extended, key.as_bytes(), id.to_string().as_bytes());
            }
        }
        let (modified_s, modified_ns) = self.modified;
        if modified_ns != 0 || modified_s < 0 {
            record(&mut extended, b"mtime", moment(modified_s, modified_ns).as_bytes());
        }
        for (name, value) in self.attributes {
            record(&mut extended, &[ATTRIBUTE, name].concat(), value);
        }
        if let Some(comment) = &self.comment {
            record(&mut extended, b"comment", comment.as_bytes());
        }
        if !extended.is_empty() {
            let size = extended.len() as u64;
            let about = Block { letter: b'x', mode: 0o644, owner: (0, 0), size, modified_s: 0 };
            about.write(b"PaxHeaders/entry", b"", to);
            to.extend_from_slice(&extended);
            to.resize(to.len() + padding(size) as usize, 0);
        }
        let block = Block {
            letter: self.kind.letter(),
            mode: self.mode,
            owner: (user.min(ID_MAX), group.min(ID_MAX)),
            size: self.size.min(SIZE_MAX),
            modified_s: u64::try_from(modified_s).unwrap_or(0).min(SIZE_MAX),
        };
        block.write(self.path, self.target, to);
    }
}

struct Block {
    letter: u8,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    modified_s: u64,
}

impl Block {
    fn write(&self, name: &[u8], target: &[u8], to: &mut Vec<u8>) {
        let mut block = [0; BLOCK];
        fill(&mut block[..100], name);
        octal(&mut block[100..108], self.mode.into());
        octal(&mut block[108..116], self.owner.0.into());
        octal(&mut block[116..124], self.owner.1.into());
        octal(&mut block[124..136], self.size);
        octal(&mut block[136..148], self.modified_s);
        block[148..156].fill(b' ');
        block[156] = self.letter;
        fill(&mut block[157..257], target);
        block[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
        octal(&mut block[148..156], sum);
        to.extend_from_slice(&block);
    }
}

/// Digits with leading zeros, and a zero byte at the end. A number that does not fit is in the
/// extended header, and the largest possible one is here.
fn octal(field: &mut [u8], number: u64) {
    let digits = field.len() - 1;
    let number = number.min((1 << (3 * digits)) - 1);
    field.copy_from_slice(format!("{number:0digits$o}\0").as_bytes());
}

/// Seconds with a fraction, as in extended headers.
fn moment(seconds: i64, nanoseconds: u32) -> String {
    let all = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let sign = if all < 0 { "-" } else { "" };
    let (whole, fraction) =
        (all.unsigned_abs() / 1_000_000_000, all.unsigned_abs() % 1_000_000_000);
    format!("{sign}{whole}.{fraction:09}")
}

fn fill(field: &mut [u8], text: &[u8]) {
    let fits = text.len().min(NAME_BYTES);
    field[..fits].copy_from_slice(&text[..fits]);
}

/// One record of an extended header. Its length includes its own digits.
fn record(to: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    to.extend_from_slice(format!("{length} ").as_bytes());
    to.extend_from_slice(key);
    to.push(b'=');
    to.extend_from_slice(value);
    to.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_pax_record_includes_itself() {
        for length in 0..1100 {
            let mut line = Vec::new();
            record(&mut line, b"path", &vec![b'x'; length]);
            let digits: String =
                line.iter().take_while(|b| b.is_ascii_digit()).map(|b| char::from(*b)).collect();
            assert_eq!(digits.parse(), Ok(line.len()));
        }
    }

    #[test]
    fn a_plain_tar_header_has_stable_bytes() {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Link);
        header.set_mode(0o4755);
        header.set_uid(1000);
        header.set_gid(7);
        header.set_size(123_456_789);
        header.set_mtime(1_767_323_045);
        header.set_path("a/b").unwrap();
        header.set_link_name("c").unwrap();
        header.set_cksum();
        let written = NewEntry {
            kind: Kind::Hardlink,
            path: b"a/b",
            mode: 0o4755,
            owner: (1000, 7),
            size: 123_456_789,
            modified: (1_767_323_045, 0),
            target: b"c",
            attributes: &[],
            comment: None,
        };
        let mut bytes = Vec::new();
        written.write(&mut bytes);
        assert_eq!(bytes, header.as_bytes());
    }

    #[test]
    fn pax_times_are_written_as_they_are_read() {
        for (seconds, nanoseconds, expected) in [
            (12, 500_000_000, "12.500000000"),
            (12, 5, "12.000000005"),
            (-2, 750_000_000, "-1.250000000"),
            (-1, 750_000_000, "-0.250000000"),
            (-3, 0, "-3.000000000"),
            (0, 1, "0.000000001"),
            (i64::MIN, 999_999_999, "-9223372036854775807.000000001"),
        ] {
            assert_eq!(moment(seconds, nanoseconds), expected);
        }
    }

    #[test]
    fn large_numbers_are_written_in_an_extended_header() {
        let written = NewEntry {
            kind: Kind::File,
            path: b"large",
            mode: u32::MAX,
            owner: (u32::MAX, 0),
            size: u64::MAX >> 1,
            modified: (i64::MAX, 0),
            target: b"",
            attributes: &[],
            comment: None,
        };
        let mut bytes = Vec::new();
        written.write(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("size=9223372036854775807\n"), "{text}");
        assert!(text.contains("uid=4294967295\n"), "{text}");
    }

    #[test]
    fn other_programs_read_written_tar_entries() {
        let long = "d/".repeat(120) + "file";
        let mut bytes = Vec::new();
        for (path, comment) in [("short", None), (long.as_str(), Some("skipped: x".to_owned()))] {
            let written = NewEntry {
                kind: Kind::Symlink,
                path: path.as_bytes(),
                mode: 0o640,
                owner: (1000, 1000),
                size: 0,
                modified: (1_767_323_045, 0),
                target: long.as_bytes(),
                attributes: &[],
                comment,
            };
            written.write(&mut bytes);
        }
        end(&mut bytes);
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut paths = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.header().mode().unwrap(), 0o640);
            assert_eq!(entry.header().mtime().unwrap(), 1_767_323_045);
            assert_eq!(entry.link_name_bytes().unwrap(), long.as_bytes());
            paths.push(String::from_utf8(entry.path_bytes().into_owned()).unwrap());
        }
        assert_eq!(paths, ["short", long.as_str()]);
    }
}
