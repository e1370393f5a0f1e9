//! One entry of an archive as it is written: the old form that everything reads, and before it an
//! extended one where names are long, files are large, or something is to be remarked.

use tar::{EntryType, Header};

use super::{ATTRIBUTE, BLOCK};

const NAME_BYTES: usize = 100;
/// What eleven octal digits can say.
const SIZE_MAX: u64 = 0o777_7777_7777;
/// What seven octal digits can say.
const ID_MAX: u32 = 0o777_7777;

/// How many bytes fill up the last block of `size` bytes.
pub const fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// Ends an archive.
pub fn end(to: &mut Vec<u8>) {
    to.resize(to.len() + 2 * BLOCK, 0);
}

/// An attribute: its name and what it says.
pub type Attribute = (Box<[u8]>, Box<[u8]>);

/// One entry.
#[derive(Debug)]
pub struct Written<'a> {
    /// What it is.
    pub kind: EntryType,
    /// Where; a directory ends with a slash.
    pub path: &'a [u8],
    /// Its permissions.
    pub mode: u32,
    /// Whose it is: user and group.
    pub owner: (u32, u32),
    /// How many bytes follow it.
    pub size: u64,
    /// When it was last written, in seconds since 1970 and billionths of one.
    pub modified: (i64, u32),
    /// Where a link points.
    pub target: &'a [u8],
    /// What users said about it.
    pub attributes: &'a [Attribute],
    /// A remark.
    pub comment: Option<String>,
}

impl Written<'_> {
    /// Writes what comes before its bytes.
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
            let text = format!("{modified_s}.{modified_ns:09}");
            record(&mut extended, b"mtime", text.as_bytes());
        }
        for (name, value) in self.attributes {
            record(&mut extended, &[ATTRIBUTE, name].concat(), value);
        }
        if let Some(comment) = &self.comment {
            record(&mut extended, b"comment", comment.as_bytes());
        }
        if !extended.is_empty() {
            let size = extended.len() as u64;
            let (kind, mode, owner) = (EntryType::XHeader, 0o644, (0, 0));
            let about = Block { kind, mode, owner, size, modified_s: 0 };
            about.write(b"PaxHeaders/entry", b"", to);
            to.extend_from_slice(&extended);
            to.resize(to.len() + padding(size) as usize, 0);
        }
        let block = Block {
            kind: self.kind,
            mode: self.mode,
            owner: (user.min(ID_MAX), group.min(ID_MAX)),
            size: self.size.min(SIZE_MAX),
            modified_s: u64::try_from(modified_s).unwrap_or(0).min(SIZE_MAX),
        };
        block.write(self.path, self.target, to);
    }
}

struct Block {
    kind: EntryType,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    modified_s: u64,
}

impl Block {
    fn write(&self, name: &[u8], target: &[u8], to: &mut Vec<u8>) {
        let mut header = Header::new_ustar();
        header.set_entry_type(self.kind);
        header.set_mode(self.mode);
        header.set_uid(self.owner.0.into());
        header.set_gid(self.owner.1.into());
        header.set_size(self.size);
        header.set_mtime(self.modified_s);
        let fields = header.as_old_mut();
        fill(&mut fields.name, name);
        fill(&mut fields.linkname, target);
        header.set_cksum();
        to.extend_from_slice(header.as_bytes());
    }
}

fn fill(field: &mut [u8; NAME_BYTES], text: &[u8]) {
    let fits = text.len().min(NAME_BYTES);
    field[..fits].copy_from_slice(&text[..fits]);
}

/// One line of an extended header. Its length counts its own digits.
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
    fn the_length_of_a_record_counts_itself() {
        for length in 0..1100 {
            let mut line = Vec::new();
            record(&mut line, b"path", &vec![b'x'; length]);
            let digits: String =
                line.iter().take_while(|b| b.is_ascii_digit()).map(|b| char::from(*b)).collect();
            assert_eq!(digits.parse(), Ok(line.len()));
        }
    }

    #[test]
    fn what_is_written_is_read_by_others() {
        let long = "d/".repeat(120) + "file";
        let mut bytes = Vec::new();
        for (path, comment) in [("short", None), (long.as_str(), Some("skipped: x".to_owned()))] {
            let written = Written {
                kind: EntryType::Symlink,
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
