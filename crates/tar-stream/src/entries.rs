//! Reads the entries of an archive, one after the other, from a reader.

use std::io::{self, BufRead, ErrorKind, Read};

use crate::decoder::{Bounds, Decoder, Step};
use crate::error::TarError;
use crate::{BLOCK, Entry, padding};

/// The most bytes after the end of an archive.
const TAIL_BYTES_MAX: u64 = 1 << 20;

/// A reader of an archive.
#[derive(Debug)]
pub struct Entries<R> {
    reader: R,
    decoder: Decoder,
    /// Unread contents of the current entry, and the padding of their last block.
    data_left: u64,
    padding_left: u64,
    position: u64,
    has_ended: bool,
    is_whole: bool,
}

impl<R: Read> Entries<R> {
    /// Reads an archive within bounds. It may end without an end mark: some programs write none.
    pub fn new(reader: R, bounds: Bounds) -> Self {
        Self {
            reader,
            decoder: Decoder::new(bounds),
            data_left: 0,
            padding_left: 0,
            position: 0,
            has_ended: false,
            is_whole: false,
        }
    }

    /// Reads an archive that must have its end mark, and reads to the last byte, so that a checksum
    /// of the whole sees all of it.
    pub fn whole(reader: R, bounds: Bounds) -> Self {
        Self { is_whole: true, ..Self::new(reader, bounds) }
    }

    /// The number of bytes read: the position in the contents of the current entry.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next entry; `None` at the end. Unread contents of the one before are skipped.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        self.skip_rest()?;
        while !self.has_ended {
            let Some(block) = self.block()? else {
                self.has_ended = true;
                self.decoder.end()?;
                if self.is_whole {
                    return Err(TarError::Cut);
                }
                break;
            };
            match self.decoder.block(&block)? {
                Step::More => {}
                Step::Entry(entry) => {
                    (self.data_left, self.padding_left) = (entry.size, padding(entry.size));
                    return Ok(Some(*entry));
                }
                Step::End => self.end()?,
            }
        }
        Ok(None)
    }

    /// Leaves the rest of the current entry to the caller, which must skip this many bytes itself.
    pub fn pass_over(&mut self) -> (&mut R, u64) {
        let count = std::mem::take(&mut self.data_left) + std::mem::take(&mut self.padding_left);
        self.position = self.position.saturating_add(count);
        (&mut self.reader, count)
    }

    fn skip_rest(&mut self) -> Result<(), TarError> {
        let (reader, count) = self.pass_over();
        let skipped = io::copy(&mut reader.take(count), &mut io::sink()).map_err(TarError::Read)?;
        if skipped == count { Ok(()) } else { Err(TarError::Cut) }
    }

    /// The next block; `None` if the bytes end between two blocks.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let (mut block, mut filled) = ([0; BLOCK], 0);
        while filled < BLOCK {
            match self.reader.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(TarError::Cut),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(TarError::Read(error)),
            }
        }
        self.position += BLOCK as u64;
        Ok(Some(block))
    }

    fn end(&mut self) -> Result<(), TarError> {
        self.has_ended = true;
        if !self.is_whole {
            return Ok(());
        }
        let most = TAIL_BYTES_MAX + 1;
        let followed = io::copy(&mut (&mut self.reader).take(most), &mut io::sink());
        if followed.map_err(TarError::Read)? < most {
            Ok(())
        } else {
            Err(TarError::broken("data follows the end of the archive"))
        }
    }
}

/// The contents of the current entry.
impl<R: Read> Read for Entries<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.data_left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let count = self.reader.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(TarError::Cut.into());
        }
        self.data_left -= count as u64;
        self.position += count as u64;
        Ok(count)
    }
}

impl<R: BufRead> Entries<R> {
    /// Contents of the current entry, as many as are buffered; empty at their end.
    pub fn data(&mut self) -> Result<&[u8], TarError> {
        if self.data_left == 0 {
            return Ok(&[]);
        }
        let at_hand = fill(&mut self.reader)?;
        if at_hand.is_empty() {
            return Err(TarError::Cut);
        }
        let wanted = usize::try_from(self.data_left).unwrap_or(usize::MAX).min(at_hand.len());
        Ok(&at_hand[..wanted])
    }

    /// Consumes this many of them.
    pub fn take_data(&mut self, count: usize) {
        self.reader.consume(count);
        self.data_left -= count as u64;
        self.position += count as u64;
    }
}

fn fill(reader: &mut impl BufRead) -> Result<&[u8], TarError> {
    while let Err(error) = reader.fill_buf() {
        if error.kind() != ErrorKind::Interrupted {
            return Err(TarError::Read(error));
        }
    }
    // The borrow of the loop ended with it; the buffer is still filled.
    reader.fill_buf().map_err(TarError::Read)
}
