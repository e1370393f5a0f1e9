//! The entries of an archive, one after the other, from a reader.

use std::io::{self, BufRead, ErrorKind, Read};

use crate::decoder::{Bounds, Decoder, Step};
use crate::error::TarError;
use crate::{BLOCK, Entry, padding};

/// What may follow the end of an archive.
const TAIL_BYTES_MAX: u64 = 1 << 20;

/// An archive as it is read.
#[derive(Debug)]
pub struct Entries<R> {
    reader: R,
    decoder: Decoder,
    /// Contents of the current entry that were not taken yet, and what fills up their last block.
    data_left: u64,
    padding_left: u64,
    position: u64,
    has_ended: bool,
    is_whole: bool,
}

impl<R: Read> Entries<R> {
    /// Reads an archive within bounds. One that ends without a mark is one too: some programs write
    /// none.
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

    /// Reads an archive that has its mark at the end, and reads to the last byte, so that whatever
    /// checks the whole has seen it all.
    pub fn whole(reader: R, bounds: Bounds) -> Self {
        Self { is_whole: true, ..Self::new(reader, bounds) }
    }

    /// How many bytes were read: where the contents of the current entry go on.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next entry; none at the end. What was not taken of the one before is passed over.
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

    /// Gives up the rest of the current entry to somebody who goes past it in another way: so many
    /// bytes.
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

    /// The next block; none where the bytes end between two.
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
            Err(TarError::broken("something follows its end"))
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
    /// Contents of the current entry, as many as are at hand; empty at their end.
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

    /// Says how many of them were taken.
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
    // The borrow of the loop ended with it; what it filled is still there.
    reader.fill_buf().map_err(TarError::Read)
}
