//! Reads and writes files as text for tools. A file that is not text is sent as base64, and never
//! written back changed.

use engine::{Entry, Use};
use model::ErrorCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use web::refused::Refused;

/// The most bytes that one call reads: more would not help a model.
pub(super) const READ_BYTES_MAX: u64 = 1 << 20;
/// The largest file that is edited in place.
pub(super) const EDIT_BYTES_MAX: u64 = 8 << 20;

/// Part of a file.
pub(super) struct Read {
    pub(super) entry: Entry,
    pub(super) bytes: Vec<u8>,
    /// Whether there is more after it.
    pub(super) more: bool,
}

/// Reads at most `length` bytes from `offset` on.
pub(super) async fn read(
    used: &Use,
    path: &str,
    offset: u64,
    length: u64,
) -> Result<Read, Refused> {
    let length = length.min(READ_BYTES_MAX.max(EDIT_BYTES_MAX));
    // One more than wanted tells whether there is more, also of files that do not know their size.
    let reader = used.read_file(path, offset, Some(length + 1)).await?;
    let entry = reader.entry.clone();
    let mut bytes = Vec::new();
    if let Err(error) = reader.take(length + 1).read_to_end(&mut bytes).await {
        return Err(used.explain(error).await.into());
    }
    let more = bytes.len() as u64 > length;
    bytes.truncate(length as usize);
    Ok(Read { entry, bytes, more })
}

/// The whole of a file that is text.
pub(super) async fn read_text(used: &Use, path: &str) -> Result<(Entry, String), Refused> {
    let read = read(used, path, 0, EDIT_BYTES_MAX).await?;
    if read.more {
        let cause = format!("the file has more than {EDIT_BYTES_MAX} bytes");
        return Err(Refused::new(ErrorCode::TooLarge, cause));
    }
    match String::from_utf8(read.bytes) {
        Ok(text) => Ok((read.entry, text)),
        Err(_) => Err(Refused::invalid("path", "path: the file is not UTF-8 text")),
    }
}

/// Writes a whole file; it has its name once all of it is there.
pub(super) async fn write(
    used: &Use,
    path: &str,
    bytes: &[u8],
    mode: Option<u32>,
) -> Result<Entry, Refused> {
    let mut writer = used.write_file(path, mode).await?;
    if let Err(error) = writer.write_all(bytes).await {
        return Err(used.explain(error).await.into());
    }
    Ok(used.finish_file(writer).await?)
}
