//! Reads an archive as its bytes pass. Whoever wrote it may have been a stranger, or the disk may
//! have lost some of it: nothing it claims costs memory, and an archive that ends too early is no
//! archive.

use std::io::{self, Read};

use tar::Header;

use super::{ATTRIBUTE, Attribute, BLOCK, padding};

/// Names, attributes and remarks of one entry are kept in memory: nobody needs more for them.
const SAID_BYTES_MAX: u64 = 1 << 20;

/// What may follow the end of an archive.
const TAIL_BYTES_MAX: u64 = 1 << 20;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Another name of a file that came before.
    Hardlink,
    /// A named pipe.
    Fifo,
    /// Anything else, by its letter.
    Other(u8),
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Where.
    pub path: Vec<u8>,
    /// Where a link points, or what a file is another name of.
    pub target: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
    /// Whose it is: user and group.
    pub owner: (u32, u32),
    /// How many bytes it has.
    pub size: u64,
    /// When it was last written, in seconds since 1970 and billionths of one.
    pub modified: (i64, u32),
    /// What users said about it.
    pub attributes: Vec<Attribute>,
}

/// The entries of an archive, one after another.
#[derive(Debug)]
pub struct Entries<R> {
    from: R,
    /// What is left of the bytes of the last entry, and what fills up its last block.
    left: u64,
    padding: u64,
    is_over: bool,
}

/// What was said about the next entry before it came.
#[derive(Default)]
struct Said {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    user: Option<u32>,
    group: Option<u32>,
    modified: Option<(i64, u32)>,
    attributes: Vec<Attribute>,
}

impl<R: Read> Entries<R> {
    /// Of these bytes.
    pub const fn of(from: R) -> Self {
        Self { from, left: 0, padding: 0, is_over: false }
    }

    /// The next entry; none at the end, which is where it must be.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        self.skip(self.left + self.padding)?;
        (self.left, self.padding) = (0, 0);
        let mut said = Said::default();
        while !self.is_over {
            let mut block = [0; BLOCK];
            self.from.read_exact(&mut block)?;
            if block == [0; BLOCK] {
                self.end()?;
                break;
            }
            let header = Header::from_byte_slice(&block);
            check_sum(header, &block)?;
            let size = header.entry_size().map_err(damaged)?;
            match header.entry_type().as_byte() {
                b'L' => said.path = Some(until_zero(self.said(size)?)),
                b'K' => said.target = Some(until_zero(self.said(size)?)),
                b'x' => said.hear(&self.said(size)?)?,
                b'g' => drop(self.said(size)?),
                letter => return self.entry(header, letter, size, said).map(Some),
            }
        }
        Ok(None)
    }

    /// Some bytes of the last entry; none when it is over.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.from.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }

    fn entry(&mut self, header: &Header, letter: u8, size: u64, said: Said) -> io::Result<Entry> {
        let path = said.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let kind = match letter {
            // Before there were directories in archives, a slash at the end made one.
            b'0' | b'\0' if path.ends_with(b"/") => Kind::Directory,
            b'0' | b'\0' | b'7' => Kind::File,
            b'1' => Kind::Hardlink,
            b'2' => Kind::Symlink,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => Kind::Other(other),
        };
        let size = said.size.unwrap_or(size);
        self.left = size;
        self.padding = padding(size);
        let id = |said: Option<u32>, written: io::Result<u64>| {
            said.or_else(|| u32::try_from(written.ok()?).ok()).unwrap_or(u32::MAX)
        };
        let target = said.target.or_else(|| Some(header.link_name_bytes()?.into_owned()));
        Ok(Entry {
            kind,
            path,
            target: target.unwrap_or_default(),
            mode: header.mode().map_err(damaged)? & 0o7777,
            owner: (id(said.user, header.uid()), id(said.group, header.gid())),
            size,
            modified: match said.modified {
                Some(modified) => modified,
                None => (i64::try_from(header.mtime().map_err(damaged)?).unwrap_or(0), 0),
            },
            attributes: said.attributes,
        })
    }

    /// The bytes of an entry that is about another one.
    fn said(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > SAID_BYTES_MAX {
            return Err(invalid("a name or a remark is too long"));
        }
        let mut said = vec![0; size as usize];
        self.from.read_exact(&mut said)?;
        self.skip(padding(size))?;
        Ok(said)
    }

    fn skip(&mut self, count: u64) -> io::Result<()> {
        let skipped = io::copy(&mut (&mut self.from).take(count), &mut io::sink())?;
        if skipped == count { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Reads to the last byte, so that whatever checks the whole has seen it all.
    fn end(&mut self) -> io::Result<()> {
        self.is_over = true;
        let most = TAIL_BYTES_MAX + 1;
        let followed = io::copy(&mut (&mut self.from).take(most), &mut io::sink())?;
        if followed < most { Ok(()) } else { Err(invalid("something follows its end")) }
    }
}

impl Said {
    fn hear(&mut self, records: &[u8]) -> io::Result<()> {
        for record in Records(records) {
            let (key, value) = record?;
            let number = || {
                let text = std::str::from_utf8(value).ok();
                let number: Option<u64> = text.and_then(|text| text.parse().ok());
                number.ok_or_else(|| invalid("a number that is none"))
            };
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => self.size = Some(number()?),
                b"uid" => self.user = u32::try_from(number()?).ok(),
                b"gid" => self.group = u32::try_from(number()?).ok(),
                b"mtime" => self.modified = moment(value),
                key => {
                    if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                        self.attributes.push((name.into(), value.into()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The lines of an extended header: each says how long it is, so that values can be anything.
#[derive(Debug)]
pub struct Records<'a>(pub &'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = io::Result<(&'a [u8], &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let record = self.take_line();
        if record.is_none() {
            self.0 = &[];
        }
        Some(record.ok_or_else(|| invalid("an extended header that makes no sense")))
    }
}

impl<'a> Records<'a> {
    fn take_line(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let space = self.0.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&self.0[..space]).ok()?.parse().ok()?;
        let (line, rest) = self.0.split_at_checked(length)?;
        let line = line.get(space + 1..)?.strip_suffix(b"\n")?;
        let equals = line.iter().position(|byte| *byte == b'=')?;
        self.0 = rest;
        Some((&line[..equals], &line[equals + 1..]))
    }
}

/// Seconds and a fraction of one, as decimal digits.
fn moment(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    Some((seconds.parse().ok()?, nine.parse().ok()?))
}

fn until_zero(mut name: Vec<u8>) -> Vec<u8> {
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
    name
}

fn check_sum(header: &Header, block: &[u8; BLOCK]) -> io::Result<()> {
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte }))
        .sum();
    match header.cksum() {
        Ok(said) if said == sum => Ok(()),
        Ok(_) | Err(_) => Err(invalid("a header is damaged, or it is no tar archive")),
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the archive cannot be read: {why}"))
}

#[expect(clippy::needless_pass_by_value, reason = "it is what errors are mapped by")]
fn damaged(error: io::Error) -> io::Error {
    invalid(&error.to_string())
}

#[cfg(test)]
mod tests {
    use tar::EntryType;

    use super::super::{Written, end};
    use super::*;

    fn written(path: &[u8], attributes: &[Attribute], size: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let written = Written {
            kind: EntryType::Regular,
            path,
            mode: 0o4751,
            owner: (1000, 3_000_000_000),
            size,
            modified: (-5, 250),
            target: b"",
            attributes,
            comment: None,
        };
        written.write(&mut bytes);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let long = [b"\xff".repeat(300), b"/x".to_vec()].concat();
        let attributes: [Attribute; 1] = [(b"user.note"[..].into(), b"a\0b\n=".as_slice().into())];
        let mut bytes = written(&long, &attributes, 3);
        bytes.extend_from_slice(b"abc");
        bytes.resize(bytes.len() + padding(3) as usize, 0);
        bytes.extend(written(b"empty", &[], 0));
        end(&mut bytes);
        let mut entries = Entries::of(bytes.as_slice());
        let first = entries.next_entry().unwrap().unwrap();
        assert_eq!((first.kind, &first.path, first.size), (Kind::File, &long, 3));
        assert_eq!((first.mode, first.owner), (0o4751, (1000, 3_000_000_000)));
        assert_eq!((first.modified, &first.attributes[..]), ((-5, 250), &attributes[..]));
        let mut buffer = [0; 2];
        assert_eq!(entries.read(&mut buffer).unwrap(), 2);
        let second = entries.next_entry().unwrap().unwrap();
        assert_eq!((second.path, second.size), (b"empty".to_vec(), 0));
        assert_eq!(entries.read(&mut buffer).unwrap(), 0);
        assert_eq!(entries.next_entry().unwrap(), None);
        assert_eq!(entries.next_entry().unwrap(), None);
    }

    #[test]
    fn records_say_how_long_they_are() {
        let all = |text: &'static [u8]| Records(text).collect::<io::Result<Vec<_>>>().ok();
        let two = [(&b"a"[..], &b"1\n2"[..]), (b"bc", b"")];
        assert_eq!(all(b"8 a=1\n2\n6 bc=\n").as_deref(), Some(&two[..]));
        for bad in
            [&b"8 a=1\n2"[..], b"x a=1\n", b"5 a1\n\n", b"2 a=1\n", b"7 a=1\n", b"99999999999 a=\n"]
        {
            assert_eq!(all(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn an_archive_that_ends_early_or_lies_is_none() {
        let mut whole = written(b"file", &[], 700);
        whole.resize(whole.len() + 1024, b'x');
        end(&mut whole);
        let all = |bytes: &[u8]| -> io::Result<usize> {
            let mut entries = Entries::of(bytes);
            let mut count = 0;
            while entries.next_entry()?.is_some() {
                count += 1;
            }
            Ok(count)
        };
        assert_eq!(all(&whole).unwrap(), 1);
        for cut in [1, 511, 512, 513, 1200, whole.len() - 1024] {
            assert!(all(&whole[..cut]).is_err(), "{cut}");
        }
        let mut wrong = whole.clone();
        wrong[1024 + 10] ^= 1;
        assert!(all(&wrong).is_err(), "a damaged header");
        let mut followed = whole.clone();
        followed.resize(followed.len() + (2 << 20), 7);
        assert!(all(&followed).is_err(), "something else after its end");
        assert_eq!(moment(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(moment(b"x"), None);
    }
}
