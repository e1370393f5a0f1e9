//! The compression of bytes, recognised by how they begin.

use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

use crate::error::{ImageError, ImageErrorCode};

/// Enough to recognise every kind.
const PEEK_BYTES: u64 = 6;

/// A kind that we can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Recognises it by the first bytes. Known kinds that we cannot read are refused by name.
    pub(crate) fn of(begin: &[u8]) -> Result<Self, ImageError> {
        let unsupported = |name: &str| {
            let cause =
                format!("the archive is compressed with {name}; use gzip, zstd or no compression");
            Err(ImageError::new(ImageErrorCode::Unsupported, cause))
        };
        match begin {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip),
            // A frame, or a skippable one.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Self::Zstd),
            [b'B', b'Z', b'h', ..] => unsupported("bzip2"),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => unsupported("xz"),
            _ => Ok(Self::None),
        }
    }

    /// A reader of the decompressed bytes.
    pub(crate) fn reader<'a>(
        self,
        source: impl Read + Send + 'a,
    ) -> Result<Box<dyn Read + Send + 'a>, ImageError> {
        Ok(match self {
            Self::None => Box::new(source),
            Self::Gzip => Box::new(MultiGzDecoder::new(source)),
            Self::Zstd => {
                let decoder = zstd::stream::read::Decoder::new(source);
                let failed = |error| ImageError::read("cannot start decompression", error);
                Box::new(Damaged(decoder.map_err(failed)?))
            }
        })
    }
}

/// Reports invalid data of this library as such, and not as any I/O error.
struct Damaged<R>(R);

impl<R: Read> Read for Damaged<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| {
            let is_ours = error.get_ref().and_then(|inner| inner.downcast_ref::<ImageError>());
            if error.kind() != io::ErrorKind::Other || is_ours.is_some() {
                return error;
            }
            io::Error::new(io::ErrorKind::InvalidData, error)
        })
    }
}

/// The first bytes, and the rest.
pub(super) fn peek<R: Read>(mut source: R) -> Result<(Vec<u8>, R), ImageError> {
    let mut begin = Vec::new();
    let failed = |error| ImageError::read("cannot read the archive", error);
    source.by_ref().take(PEEK_BYTES).read_to_end(&mut begin).map_err(failed)?;
    Ok((begin, source))
}
