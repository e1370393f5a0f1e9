//! One entry of an archive as it is written: the old form that everything reads, and before it an
//! extended one where names are long, files are large, or something is to be remarked.

use tar::{EntryType, Header};

use crate::archive::padding;

const NAME_BYTES: usize = 100;
/// What twelve octal digits can say.
const SIZE_MAX: u64 = 0o777_7777_7777;

/// One entry.
pub(crate) struct Written<'a> {
    pub(crate) kind: EntryType,
    pub(crate) path: &'a str,
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) modified_ms: i64,
    /// Where a link points.
    pub(crate) target: &'a [u8],
    pub(crate) comment: Option<String>,
}

impl Written<'_> {
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let mut extended = Vec::new();
        if self.path.len() > NAME_BYTES {
            record(&mut extended, "path", self.path.as_bytes());
        }
        if self.target.len() > NAME_BYTES {
            record(&mut extended, "linkpath", self.target);
        }
        if self.size > SIZE_MAX {
            record(&mut extended, "size", self.size.to_string().as_bytes());
        }
        if let Some(comment) = &self.comment {
            record(&mut extended, "comment", comment.as_bytes());
        }
        if !extended.is_empty() {
            let size = extended.len() as u64;
            block(to, EntryType::XHeader, b"PaxHeaders/entry", 0o644, size, 0, b"");
            to.extend_from_slice(&extended);
            to.resize(to.len() + padding(size) as usize, 0);
        }
        let modified_s = u64::try_from(self.modified_ms.div_euclid(1000)).unwrap_or(0);
        let path = self.path.as_bytes();
        block(to, self.kind, path, self.mode, self.size.min(SIZE_MAX), modified_s, self.target);
    }
}

fn block(
    to: &mut Vec<u8>,
    kind: EntryType,
    name: &[u8],
    mode: u32,
    size: u64,
    modified_s: u64,
    target: &[u8],
) {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header.set_mtime(modified_s.min(SIZE_MAX));
    let fields = header.as_old_mut();
    fill(&mut fields.name, name);
    fill(&mut fields.linkname, target);
    header.set_cksum();
    to.extend_from_slice(header.as_bytes());
}

fn fill(field: &mut [u8; NAME_BYTES], text: &[u8]) {
    let fits = text.len().min(NAME_BYTES);
    field[..fits].copy_from_slice(&text[..fits]);
}

/// One line of an extended header. Its length counts its own digits.
fn record(to: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    to.extend_from_slice(format!("{length} {key}=").as_bytes());
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
            record(&mut line, "path", &vec![b'x'; length]);
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
            let (kind, target) = (EntryType::Symlink, long.as_bytes());
            let (mode, modified_ms) = (0o640, 1_767_323_045_678);
            Written { kind, path, mode, size: 0, modified_ms, target, comment }.write(&mut bytes);
        }
        bytes.resize(bytes.len() + 1024, 0);
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
