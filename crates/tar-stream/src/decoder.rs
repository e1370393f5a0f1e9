//! Decodes an archive block by block, without I/O. The caller gives one block after another until
//! there is an entry, skips its contents and their padding, and gives the next block.

use crate::error::TarError;
use crate::header::{self, Header};
use crate::pax::Pax;
use crate::sparse::{DataMap, Region, Sparse, from_header, from_more};
use crate::{BLOCK, Entry, Kind, padding};

/// Names, attributes and remarks of one entry are kept in memory, so together they are bounded.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;
/// The most extension headers before the header of an entry itself.
const EXTENSION_HEADERS_MAX: u32 = 16;
/// No file is larger, and sums of a few such sizes do not overflow.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Bounds of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Headers, extension headers included.
    pub headers: u64,
    /// Stored bytes of contents, of all entries together.
    pub bytes: u64,
}

impl Bounds {
    /// No bounds besides those of the format: for a caller that counts itself.
    pub const NONE: Self = Self { headers: u64::MAX, bytes: u64::MAX };
}

/// The result of a block.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A part of something: the next block continues it.
    More,
    /// The last header of an entry. Its contents follow, if it has any.
    Entry(Box<Entry>),
    /// The end of the archive.
    End,
}

/// The decoder of an archive.
#[derive(Debug)]
pub struct Decoder {
    left: Bounds,
    extensions: Extensions,
    state: State,
}

/// Extension headers before an entry.
#[derive(Debug, Default)]
struct Extensions {
    headers: u32,
    bytes: u64,
    long_path: Option<Vec<u8>>,
    long_target: Option<Vec<u8>>,
    pax: Option<Pax>,
}

/// What the next block belongs to.
#[derive(Debug)]
enum State {
    Headers,
    /// Text about the next entry, by the type of its header, and how many bytes are missing.
    Text {
        letter: u8,
        text: Vec<u8>,
        missing: u64,
    },
    /// The sparse map that continues after the header.
    HeaderMap {
        header: Header,
        real_size: u64,
        regions: Vec<Region>,
    },
    /// The sparse map before the contents.
    DataMap {
        header: Header,
        real_size: u64,
        map: DataMap,
        stored: u64,
    },
}

impl Decoder {
    /// For an archive within these bounds.
    pub fn new(bounds: Bounds) -> Self {
        Self { left: bounds, extensions: Extensions::default(), state: State::Headers }
    }

    /// Takes the next block.
    pub fn block(&mut self, block: &[u8; BLOCK]) -> Result<Step, TarError> {
        match std::mem::replace(&mut self.state, State::Headers) {
            State::Headers => self.header(block),
            State::Text { letter, mut text, missing } => {
                let here = missing.min(BLOCK as u64);
                text.extend_from_slice(&block[..here as usize]);
                self.text(letter, text, missing - here)
            }
            State::HeaderMap { header, real_size, mut regions } => {
                if from_more(block, &mut regions)? {
                    self.state = State::HeaderMap { header, real_size, regions };
                    return Ok(Step::More);
                }
                self.with_map(header, real_size, regions)
            }
            State::DataMap { header, real_size, mut map, stored } => {
                let stored = stored.checked_sub(BLOCK as u64).ok_or_else(Sparse::wrong)?;
                if map.is_whole_with(block)? {
                    let sparse = Sparse::checked(real_size, map.regions, stored)?;
                    return self.entry(header, stored, Some(sparse));
                }
                self.state = State::DataMap { header, real_size, map, stored };
                Ok(Step::More)
            }
        }
    }

    /// The archive has ended: an error unless it ended between two entries.
    pub fn end(&self) -> Result<(), TarError> {
        match self.state {
            State::Headers if self.extensions.headers == 0 => Ok(()),
            State::Headers
            | State::Text { .. }
            | State::HeaderMap { .. }
            | State::DataMap { .. } => Err(TarError::Cut),
        }
    }

    fn header(&mut self, block: &[u8; BLOCK]) -> Result<Step, TarError> {
        let Some(header) = header::parse(block)? else {
            self.end()?;
            return Ok(Step::End);
        };
        let Some(left) = self.left.headers.checked_sub(1) else {
            return Err(TarError::TooLarge("the archive has more entries than allowed".into()));
        };
        self.left.headers = left;
        match header.letter {
            letter @ (b'x' | b'X' | b'L' | b'K' | b'g' | b'V') => {
                self.announced(letter, header.size)
            }
            b'M' => Err(TarError::Unsupported(
                "the archive is one of several volumes; make one archive of them",
            )),
            b'S' => {
                let (real_size, regions, more) = from_header(block)?;
                if more {
                    self.state = State::HeaderMap { header, real_size, regions };
                    return Ok(Step::More);
                }
                self.with_map(header, real_size, regions)
            }
            _ => self.plain(header),
        }
    }

    /// A header announces text about the next entry.
    fn announced(&mut self, letter: u8, size: u64) -> Result<Step, TarError> {
        self.extensions.headers += 1;
        if self.extensions.headers > EXTENSION_HEADERS_MAX {
            return Err(TarError::TooLarge("an entry has too many headers".into()));
        }
        self.extensions.bytes = self.extensions.bytes.saturating_add(size);
        if self.extensions.bytes > EXTENSION_BYTES_MAX {
            return Err(TarError::TooLarge("a name or a comment is too long".into()));
        }
        self.text(letter, Vec::new(), size)
    }

    fn text(&mut self, letter: u8, text: Vec<u8>, missing: u64) -> Result<Step, TarError> {
        if missing > 0 {
            self.state = State::Text { letter, text, missing };
            return Ok(Step::More);
        }
        match letter {
            b'L' => self.extensions.long_path = Some(header::text(&text).to_vec()),
            b'K' => self.extensions.long_target = Some(header::text(&text).to_vec()),
            b'x' | b'X' => self.extensions.pax.get_or_insert_default().read(&text)?,
            // Global headers contain only comments, and a label is about no entry.
            _ => {}
        }
        Ok(Step::More)
    }

    /// An entry whose header has no sparse map.
    fn plain(&mut self, header: Header) -> Result<Step, TarError> {
        let pax = self.extensions.pax.get_or_insert_default();
        let kind = Kind::of_letter(header.letter);
        let stored = match kind {
            // These have no contents, whatever their size field says; a dump of names has.
            Kind::Directory if header.letter != b'D' => 0,
            Kind::Symlink | Kind::Hardlink | Kind::Device | Kind::Fifo => 0,
            Kind::File | Kind::Directory | Kind::Other(_) => pax.size.unwrap_or(header.size),
        };
        match (kind, pax.sparse.real_size) {
            (Kind::File, Some(real_size)) if pax.sparse.map_in_data => {
                check_size(stored)?;
                let map = DataMap::default();
                self.state = State::DataMap { header, real_size, map, stored };
                Ok(Step::More)
            }
            (Kind::File, Some(real_size)) => {
                let regions = std::mem::take(&mut pax.sparse.map);
                self.with_map(header, real_size, regions)
            }
            _ => self.entry(header, stored, None),
        }
    }

    fn with_map(
        &mut self,
        header: Header,
        real_size: u64,
        regions: Vec<Region>,
    ) -> Result<Step, TarError> {
        let declared = self.extensions.pax.as_ref().and_then(|pax| pax.size);
        let stored = declared.unwrap_or(header.size);
        let sparse = Sparse::checked(real_size, regions, stored)?;
        self.entry(header, stored, Some(sparse))
    }

    fn entry(
        &mut self,
        header: Header,
        stored: u64,
        sparse: Option<Sparse>,
    ) -> Result<Step, TarError> {
        check_size(stored)?;
        let Some(left) = self.left.bytes.checked_sub(stored) else {
            return Err(TarError::TooLarge("the archive has more bytes than allowed".into()));
        };
        self.left.bytes = left;
        let Extensions { long_path, long_target, pax, .. } = std::mem::take(&mut self.extensions);
        let pax = pax.unwrap_or_default();
        let path = pax.sparse.name.or(pax.path).or(long_path).unwrap_or(header.path);
        let mut kind = Kind::of_letter(header.letter);
        // Before there was a type for directories, a trailing slash marked them.
        if kind == Kind::File && path.ends_with(b"/") {
            kind = Kind::Directory;
        }
        let id = |extended: Option<u64>, field: Option<u64>| {
            extended.or(field).and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX)
        };
        Ok(Step::Entry(Box::new(Entry {
            kind,
            path,
            target: pax.target.or(long_target).unwrap_or(header.target),
            mode: header.mode,
            owner: (id(pax.user, header.user), id(pax.group, header.group)),
            size: stored,
            modified: pax.modified.unwrap_or((header.modified_s, 0)),
            sparse,
            attributes: pax.attributes,
            has_attributes: pax.has_attributes,
        })))
    }
}

/// A size that leaves room for its padding, and for the sum with a position.
fn check_size(size: u64) -> Result<(), TarError> {
    if size > SIZE_MAX - padding(size) {
        return Err(TarError::Size);
    }
    Ok(())
}
