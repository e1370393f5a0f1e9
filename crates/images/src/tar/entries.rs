//! The entries of an archive, one after the other, each with all that its headers say.

use std::io::{BufRead, ErrorKind, Read as _};

use crate::error::{ImageError, ImageErrorCode};
use crate::tar::header::{self, BLOCK, Header};
use crate::tar::pax::{self, Pax};
use crate::tar::sparse::{self, Sparse};

/// Longest extended header or long name that is read.
const METADATA_BYTES_MAX: u64 = 1 << 20;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Hardlink,
    /// A device of either kind.
    Device,
    Fifo,
    /// Something that we have no word for.
    Other,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// As the archive has it.
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) kind: Kind,
    /// Permissions with their special bits.
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: (i64, u32),
    /// Bytes that are stored.
    pub(crate) size: u64,
    pub(crate) sparse: Option<Sparse>,
    pub(crate) has_attributes: bool,
}

/// How much of a path is shown.
const SHOWN_BYTES_MAX: usize = 256;

impl Entry {
    /// For causes, which people read: the beginning of its path.
    pub(crate) fn shown(&self) -> String {
        self.path[..self.path.len().min(SHOWN_BYTES_MAX)].escape_ascii().to_string()
    }
}

/// An archive as it is read.
pub(crate) struct Entries<R> {
    reader: R,
    /// Contents of the current entry that were not taken yet, and what fills up their last block.
    data_left: u64,
    padding_left: u64,
    headers_left: u64,
    /// Where we are, for those who come back to it.
    position: u64,
    ended: bool,
}

impl<R: BufRead> Entries<R> {
    /// Reads an archive of at most so many headers.
    pub(crate) fn new(reader: R, headers_max: u64) -> Self {
        let (data_left, padding_left, position) = (0, 0, 0);
        let (headers_left, ended) = (headers_max, false);
        Self { reader, data_left, padding_left, headers_left, position, ended }
    }

    /// Where the contents of the current entry begin.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next entry. What was not taken of the one before is passed over.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, ImageError> {
        let (mut pax, mut long_path, mut long_link) = (None::<Pax>, None, None);
        loop {
            self.skip_rest()?;
            let Some(block) = self.header_block()? else {
                return at_end(pax.is_some() || long_path.is_some() || long_link.is_some());
            };
            let Some(header) = header::parse(&block)? else {
                self.ended = true;
                return at_end(pax.is_some() || long_path.is_some() || long_link.is_some());
            };
            match header.kind {
                b'x' | b'X' => pax = Some(pax::parse(&self.metadata(header.size)?)?),
                b'L' => long_path = Some(self.long_name(header.size)?),
                b'K' => long_link = Some(self.long_name(header.size)?),
                // What is said about all entries is comments; what it says about one is not.
                b'g' | b'V' => self.expect_data(header.size)?,
                b'M' => {
                    let cause = "the archive is one of several volumes; make one archive of them";
                    return Err(ImageError::new(ImageErrorCode::Unsupported, cause));
                }
                _ => return self.entry(&block, header, pax, long_path, long_link).map(Some),
            }
        }
    }

    fn entry(
        &mut self,
        block: &[u8; BLOCK],
        header: Header,
        pax: Option<Pax>,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Entry, ImageError> {
        let pax = pax.unwrap_or_default();
        let mut kind = match header.kind {
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::Hardlink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' | b'D' => Kind::Directory,
            b'6' => Kind::Fifo,
            _ => Kind::Other,
        };
        let stored = match kind {
            // These have no contents, whatever is said of their size; a dump of names has.
            Kind::Directory if header.kind != b'D' => 0,
            Kind::Symlink | Kind::Hardlink | Kind::Device | Kind::Fifo => 0,
            Kind::File | Kind::Directory | Kind::Other => pax.size.unwrap_or(header.size),
        };
        let mut sparse = None;
        if header.kind == b'S' {
            let (real_size, map) = sparse::from_blocks(block, || self.block())?;
            sparse = Some(Sparse::checked(real_size, map, stored)?);
        }
        self.expect_data(stored)?;
        if let (Kind::File, None, Some(real_size)) = (kind, &sparse, pax.sparse.real_size) {
            let map = if pax.sparse.map_in_data { self.map_in_data()? } else { pax.sparse.map };
            sparse = Some(Sparse::checked(real_size, map, self.data_left)?);
        }
        let path = pax.sparse.name.or(pax.path).or(long_path).unwrap_or(header.path);
        // Before there was a mark for directories, a slash was it.
        if kind == Kind::File && path.ends_with(b"/") {
            kind = Kind::Directory;
        }
        Ok(Entry {
            path,
            link: pax.link.or(long_link).unwrap_or(header.link),
            kind,
            mode: header.mode,
            uid: pax.uid.unwrap_or(header.uid),
            gid: pax.gid.unwrap_or(header.gid),
            mtime: pax.mtime.unwrap_or((header.mtime_s, 0)),
            size: self.data_left,
            sparse,
            has_attributes: pax.has_attributes,
        })
    }

    /// Contents of the current entry, as many as are at hand; empty at their end.
    pub(crate) fn data(&mut self) -> Result<&[u8], ImageError> {
        if self.data_left == 0 {
            return Ok(&[]);
        }
        let at_hand = fill(&mut self.reader)?;
        if at_hand.is_empty() {
            return Err(cut());
        }
        let wanted = usize::try_from(self.data_left).unwrap_or(usize::MAX).min(at_hand.len());
        Ok(&at_hand[..wanted])
    }

    /// Says how many of them were taken.
    pub(crate) fn take(&mut self, count: usize) {
        self.reader.consume(count);
        self.data_left -= count as u64;
        self.position += count as u64;
    }

    /// Gives up the rest of the current entry to somebody who goes past it in another way: so many
    /// bytes.
    pub(crate) fn pass_over(&mut self) -> (&mut R, u64) {
        let count = std::mem::take(&mut self.data_left) + std::mem::take(&mut self.padding_left);
        self.position += count;
        (&mut self.reader, count)
    }

    fn expect_data(&mut self, size: u64) -> Result<(), ImageError> {
        // No file is that large, and sums of sizes stay small enough.
        if size > i64::MAX as u64 {
            return Err(ImageError::broken("the size of an entry is more than any file can have"));
        }
        self.data_left = size;
        self.padding_left = size.next_multiple_of(BLOCK as u64) - size;
        Ok(())
    }

    fn skip_rest(&mut self) -> Result<(), ImageError> {
        self.data_left += std::mem::take(&mut self.padding_left);
        while self.data_left > 0 {
            let count = self.data()?.len();
            self.take(count);
        }
        Ok(())
    }

    fn metadata(&mut self, size: u64) -> Result<Vec<u8>, ImageError> {
        if size > METADATA_BYTES_MAX {
            let cause = format!("a name or an extended header has {size} bytes");
            return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
        }
        self.expect_data(size)?;
        let mut bytes = Vec::new();
        loop {
            let piece = self.data()?;
            if piece.is_empty() {
                return Ok(bytes);
            }
            bytes.extend_from_slice(piece);
            let count = piece.len();
            self.take(count);
        }
    }

    fn long_name(&mut self, size: u64) -> Result<Vec<u8>, ImageError> {
        let bytes = self.metadata(size)?;
        Ok(header::text(&bytes).to_vec())
    }

    fn map_in_data(&mut self) -> Result<Vec<sparse::Region>, ImageError> {
        let limited = &mut (&mut self.reader).take(self.data_left);
        let (taken, map) = sparse::from_data(limited)?;
        self.data_left -= taken;
        self.position += taken;
        let filling = taken.next_multiple_of(BLOCK as u64) - taken;
        for _ in 0..filling {
            if self.data()?.is_empty() {
                return Err(cut());
            }
            self.take(1);
        }
        Ok(map)
    }

    fn header_block(&mut self) -> Result<Option<[u8; BLOCK]>, ImageError> {
        if self.ended || fill(&mut self.reader)?.is_empty() {
            return Ok(None);
        }
        let Some(left) = self.headers_left.checked_sub(1) else {
            let cause = "the archive has more entries than allowed";
            return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
        };
        self.headers_left = left;
        self.block().map(Some)
    }

    fn block(&mut self) -> Result<[u8; BLOCK], ImageError> {
        let mut block = [0; BLOCK];
        self.reader.read_exact(&mut block).map_err(|error| {
            let is_cut = error.kind() == ErrorKind::UnexpectedEof;
            if is_cut { cut() } else { ImageError::read("the archive", error) }
        })?;
        self.position += BLOCK as u64;
        Ok(block)
    }
}

fn fill(reader: &mut impl BufRead) -> Result<&[u8], ImageError> {
    while let Err(error) = reader.fill_buf() {
        if error.kind() != ErrorKind::Interrupted {
            return Err(ImageError::read("the archive", error));
        }
    }
    // The borrow of the loop ended with it; what it filled is still there.
    reader.fill_buf().map_err(|error| ImageError::read("the archive", error))
}

/// The end is one only if nothing was announced that is missing now.
fn at_end(announced: bool) -> Result<Option<Entry>, ImageError> {
    if announced { Err(cut()) } else { Ok(None) }
}

fn cut() -> ImageError {
    ImageError::broken("the archive ends in the middle")
}
