//! The bytes of a layer in transit: one thread reads, decompresses and hashes them while another
//! unpacks them. The amount in transit is bounded.

mod cancellable;
mod compression;

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};

pub(crate) use cancellable::Cancellable;
pub(crate) use compression::Compression;

use crate::digest::{Digest, Hasher};
use crate::error::{ImageError, ImageErrorCode};

/// The size of a piece in transit, and how many there may be.
const PIECE_BYTES: usize = 256 << 10;
const PIECES: usize = 8;

/// The digests of what went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamDigests {
    /// The digest of the stored bytes, before decompression.
    pub(crate) stored: Digest,
    pub(crate) stored_bytes: u64,
    /// The digest of the archive itself.
    pub(crate) plain: Digest,
}

/// Lets `consume` read the decompressed bytes of `source`. What it leaves is read to the end, or
/// the digests would not be those of the whole.
pub(crate) fn from_reader<T>(
    source: impl Read + Send,
    bytes_max: u64,
    consume: impl FnOnce(&mut Pieces) -> Result<T, ImageError>,
) -> Result<(T, StreamDigests), ImageError> {
    pass(bytes_max, move |sink| pump(source, sink), consume)
}

/// Lets `consume` read what `produce` writes.
pub(crate) fn from_writer<T>(
    bytes_max: u64,
    produce: impl FnOnce(&mut Sink) -> Result<(), ImageError> + Send,
    consume: impl FnOnce(&mut Pieces) -> Result<T, ImageError>,
) -> Result<(T, StreamDigests), ImageError> {
    pass(bytes_max, move |sink| produce(sink).map(|()| None), consume)
}

/// The digest of the stored bytes, if they differ from what was passed on.
type Stored = Option<(Digest, u64)>;

fn pass<T>(
    bytes_max: u64,
    produce: impl FnOnce(&mut Sink) -> Result<Stored, ImageError> + Send,
    consume: impl FnOnce(&mut Pieces) -> Result<T, ImageError>,
) -> Result<(T, StreamDigests), ImageError> {
    let (to, from) = sync_channel(PIECES);
    let (back_to, back) = channel();
    std::thread::scope(|scope| {
        let producer = scope.spawn(move || {
            let mut sink = Sink::new(to, back, bytes_max);
            match produce(&mut sink).and_then(|stored| Ok((stored, sink.flush()?))) {
                Ok((stored, ())) => Ok(sink.passed(stored)),
                Err(error) => {
                    // If the reader is gone, it failed first and reports that itself.
                    let _ = sink.to.send(Err(error.clone().into()));
                    Err(error)
                }
            }
        });
        let mut pieces = Pieces { from, back_to, piece: Vec::new(), at: 0 };
        let outcome = consume(&mut pieces).and_then(|value| {
            pieces.drain()?;
            Ok(value)
        });
        drop(pieces);
        let passed = producer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let value = outcome?;
        Ok((value, passed?))
    })
}

/// The writing end: another thread reads what is written.
pub(crate) struct Sink {
    to: SyncSender<io::Result<Vec<u8>>>,
    /// Pieces that were read, to be filled again.
    back: Receiver<Vec<u8>>,
    piece: Vec<u8>,
    filled: usize,
    hasher: Hasher,
    bytes: u64,
    bytes_max: u64,
}

impl Sink {
    fn new(to: SyncSender<io::Result<Vec<u8>>>, back: Receiver<Vec<u8>>, bytes_max: u64) -> Self {
        let (hasher, piece) = (Hasher::default(), vec![0; PIECE_BYTES]);
        Self { to, back, piece, filled: 0, hasher, bytes: 0, bytes_max }
    }

    /// Takes everything from a reader.
    fn fill_from(&mut self, mut reader: impl Read) -> Result<(), ImageError> {
        loop {
            match reader.read(&mut self.piece[self.filled..]) {
                Ok(0) => return Ok(()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(ImageError::read("cannot read the archive", error)),
            }
            if self.filled == self.piece.len() {
                self.send()?;
            }
        }
    }

    fn send(&mut self) -> Result<(), ImageError> {
        self.bytes += self.filled as u64;
        if self.bytes > self.bytes_max {
            let cause = format!(
                "the archive is more than {} bytes without its compression",
                self.bytes_max
            );
            return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
        }
        let next = match self.back.try_recv() {
            Ok(piece) => piece,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => vec![0; PIECE_BYTES],
        };
        let mut piece = std::mem::replace(&mut self.piece, next);
        piece.truncate(std::mem::take(&mut self.filled));
        self.hasher.update(&piece);
        let gone =
            |_| ImageError::new(ImageErrorCode::Cancelled, "the reader of the archive stopped");
        self.to.send(Ok(piece)).map_err(gone)
    }

    fn flush(&mut self) -> Result<(), ImageError> {
        if self.filled > 0 { self.send() } else { Ok(()) }
    }

    fn passed(self, stored: Stored) -> StreamDigests {
        let plain = self.hasher.finish();
        let (stored, stored_bytes) = stored.unwrap_or((plain, self.bytes));
        StreamDigests { stored, stored_bytes, plain }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = &mut self.piece[self.filled..];
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        if self.filled == self.piece.len() {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The reading end.
pub(crate) struct Pieces {
    from: Receiver<io::Result<Vec<u8>>>,
    back_to: Sender<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
}

impl Pieces {
    fn drain(&mut self) -> Result<(), ImageError> {
        loop {
            let count = self.fill_buf().map_err(|error| ImageError::read("the archive", error))?;
            let count = count.len();
            if count == 0 {
                return Ok(());
            }
            self.consume(count);
        }
    }
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut at_hand = self.fill_buf()?;
        let count = at_hand.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Pieces {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.piece.len()
            && let Ok(next) = self.from.recv()
        {
            let mut read = std::mem::replace(&mut self.piece, next?);
            self.at = 0;
            if read.capacity() >= PIECE_BYTES {
                read.resize(PIECE_BYTES, 0);
                // A producer that has ended needs no pieces.
                let _ = self.back_to.send(read);
            }
        }
        Ok(&self.piece[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

/// Reads a source, hashes the stored bytes, and passes on the decompressed ones.
fn pump(source: impl Read + Send, sink: &mut Sink) -> Result<Stored, ImageError> {
    let (begin, rest) = compression::peek(source)?;
    let source = io::Cursor::new(begin.clone()).chain(rest);
    let compression = Compression::of(&begin)?;
    if compression == Compression::None {
        sink.fill_from(source)?;
        return Ok(None);
    }
    let mut stored = Hashing { inner: source, hasher: Hasher::default(), bytes: 0 };
    sink.fill_from(compression.reader(&mut stored)?)?;
    // Bytes after the compressed ones are part of what is stored, too.
    io::copy(&mut stored, &mut io::sink())
        .map_err(|error| ImageError::read("cannot read the archive", error))?;
    Ok(Some((stored.hasher.finish(), stored.bytes)))
}

struct Hashing<R> {
    inner: R,
    hasher: Hasher,
    bytes: u64,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.hasher.update(&into[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(pieces: &mut Pieces) -> Result<Vec<u8>, ImageError> {
        let mut all = Vec::new();
        pieces.read_to_end(&mut all).map_err(|error| ImageError::read("x", error))?;
        Ok(all)
    }

    #[test]
    fn both_stream_digests_cover_unread_bytes() {
        let plain: Vec<u8> = (0..600_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(plain.as_slice(), 1).unwrap();
        for stored in [&plain, &gzip, &zstd] {
            let (all, passed) = from_reader(stored.as_slice(), u64::MAX, read_all).unwrap();
            assert!(all == plain);
            let ((), unread) = from_reader(stored.as_slice(), u64::MAX, |_| Ok(())).unwrap();
            assert_eq!(passed, unread);
            assert_eq!(passed.plain, Digest::of(&plain));
            assert_eq!(passed.stored, Digest::of(stored));
            assert_eq!(passed.stored_bytes, stored.len() as u64);
        }
        let twice = [gzip.as_slice(), &gzip].concat();
        let (all, _) = from_reader(twice.as_slice(), u64::MAX, read_all).unwrap();
        assert_eq!(all.len(), plain.len() * 2, "members one after the other");
    }

    #[test]
    fn compression_bombs_and_cuts_are_errors() {
        let bomb = zstd::encode_all(io::repeat(0).take(16 << 20), 1).unwrap();
        let refused = from_reader(bomb.as_slice(), 1 << 20, |_| Ok(())).unwrap_err();
        assert_eq!(refused.code, ImageErrorCode::TooLarge);
        for cut in [&bomb[..bomb.len() / 2], &[0x1f, 0x8b, 8][..]] {
            let refused = from_reader(cut, u64::MAX, |_| Ok(())).unwrap_err();
            assert_eq!(refused.code, ImageErrorCode::Broken, "{refused}");
        }
        let refused = from_reader(&b"BZh91AY&SY"[..], u64::MAX, |_| Ok(())).unwrap_err();
        assert_eq!(refused.code, ImageErrorCode::Unsupported);
        let fails =
            from_reader(io::repeat(1), u64::MAX, |_| Err::<(), _>(ImageError::broken("enough")));
        assert_eq!(fails.unwrap_err().cause, "enough", "an endless source is left alone");
    }

    #[test]
    fn stream_writes_are_read_back() {
        let produce = |sink: &mut Sink| {
            for n in 0..300_000_u32 {
                sink.write_all(&n.to_le_bytes()).map_err(|error| ImageError::read("x", error))?;
            }
            Ok(())
        };
        let (all, passed) = from_writer(u64::MAX, produce, read_all).unwrap();
        assert_eq!((all.len(), passed.plain), (1_200_000, Digest::of(&all)));
        let refused = from_writer(1000, produce, read_all).unwrap_err();
        assert_eq!(refused.code, ImageErrorCode::TooLarge);
    }
}
