//! An archive while it is sent, compressed if that is wanted.

use std::io::{self, Write as _};

use bytes::Bytes;
use engine::Use;
use engine::archive::Packing;
use flate2::Compression;
use flate2::write::GzEncoder;

/// An archive that is being sent.
pub struct Sending {
    packing: Packing<Use>,
    gzip: Option<GzEncoder<Vec<u8>>>,
}

impl Sending {
    /// What is packed, as a body that is compressed or not.
    pub fn new(packing: Packing<Use>, is_compressed: bool) -> Self {
        let gzip = is_compressed.then(|| GzEncoder::new(Vec::new(), Compression::fast()));
        Self { packing, gzip }
    }

    /// The next bytes; none at the end and after an error.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let plain = self.packing.next_piece().await?;
            let Some(gzip) = &mut self.gzip else { return Ok(plain.map(Bytes::from)) };
            let Some(plain) = plain else {
                let last = self.gzip.take().map(GzEncoder::finish).transpose()?;
                return Ok(last.map(Bytes::from));
            };
            gzip.write_all(&plain)?;
            let piece = std::mem::take(gzip.get_mut());
            if !piece.is_empty() {
                return Ok(Some(piece.into()));
            }
        }
    }
}
