//! Reads multipart forms as a stream: at most one piece of a file is in memory. Headers, parts and
//! small fields have limits.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use memchr::memmem;

use super::errors::BlaxelError;
use web::body::next_chunk;

const HEAD_BYTES_MAX: usize = 8 << 10;
const PARTS_MAX: usize = 100;
/// A field that is no file.
const FIELD_BYTES_MAX: usize = 64 << 10;

/// A form that is being read.
pub(super) struct Form {
    body: Body,
    stall: Duration,
    /// What ends a part: a line break, two dashes and the boundary.
    end: Vec<u8>,
    buffer: BytesMut,
    parts: usize,
    at: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the first part.
    Start,
    /// In a part.
    Part,
    /// After what ended a part.
    Between,
    /// After the last one.
    Over,
}

/// The header of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) is_file: bool,
}

fn broken(why: &'static str) -> BlaxelError {
    BlaxelError::bad(format!("failed to read multipart form: {why}"))
}

impl Form {
    /// Whether a request carries a form.
    pub(super) fn is_one(headers: &HeaderMap) -> bool {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("multipart/form-data"))
    }

    pub(super) fn new(
        headers: &HeaderMap,
        body: Body,
        stall: Duration,
    ) -> Result<Self, BlaxelError> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = kind.and_then(|kind| parameter(kind, "boundary"));
        let boundary = boundary.filter(|text| (1..=70).contains(&text.len()));
        let Some(boundary) = boundary else { return Err(broken("the boundary is missing")) };
        let end = format!("\r\n--{boundary}").into_bytes();
        // The first boundary may stand at the very beginning.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        Ok(Self { body, stall, end, buffer, parts: 0, at: At::Start })
    }

    async fn more(&mut self) -> Result<(), BlaxelError> {
        match next_chunk(&mut self.body, self.stall).await? {
            Some(chunk) => {
                self.buffer.extend_from_slice(&chunk);
                Ok(())
            }
            None => Err(broken("the form was cut off")),
        }
    }

    /// The next part, past what is left of the one before; none after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Part>, BlaxelError> {
        while self.chunk().await?.is_some() {}
        if self.at == At::Over {
            return Ok(None);
        }
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err(broken("the form has too many parts"));
        }
        let length = loop {
            if let Some(length) = memmem::find(&self.buffer, b"\r\n\r\n") {
                break length;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(broken("the head of a part is too long"));
            }
            self.more().await?;
        };
        let head = self.buffer.split_to(length + 4);
        self.at = At::Part;
        Ok(Some(part(&head)))
    }

    /// More of the part; none at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, BlaxelError> {
        loop {
            match self.at {
                At::Over => return Ok(None),
                At::Between => {
                    if self.buffer.len() < 2 {
                        self.more().await?;
                        continue;
                    }
                    if self.buffer.starts_with(b"--") {
                        self.at = At::Over;
                    }
                    return Ok(None);
                }
                At::Start | At::Part => {}
            }
            let is_part = self.at == At::Part;
            if let Some(length) = memmem::find(&self.buffer, &self.end) {
                let chunk = self.buffer.split_to(length).freeze();
                let _ = self.buffer.split_to(self.end.len());
                self.at = At::Between;
                if is_part && !chunk.is_empty() {
                    return Ok(Some(chunk));
                }
                continue;
            }
            // Bytes that may begin the boundary wait.
            let safe = self.buffer.len().saturating_sub(self.end.len() - 1);
            if safe > 0 {
                let chunk = self.buffer.split_to(safe).freeze();
                if is_part {
                    return Ok(Some(chunk));
                }
                continue;
            }
            self.more().await?;
        }
    }

    /// The rest of a small part, as text.
    pub(super) async fn text(&mut self) -> Result<String, BlaxelError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > FIELD_BYTES_MAX {
                return Err(broken("a field is too long"));
            }
        }
        String::from_utf8(bytes).map_err(|_| broken("a field is not UTF-8"))
    }
}

fn part(head: &[u8]) -> Part {
    let head = String::from_utf8_lossy(head);
    let disposition = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.trim())
    });
    let of = |name| disposition.and_then(|value| parameter(value, name));
    Part {
        name: of("name").unwrap_or_default(),
        is_file: of("filename").is_some() || of("filename*").is_some(),
    }
}

/// A parameter behind a semicolon, with or without quotes.
fn parameter(value: &str, wanted: &str) -> Option<String> {
    let mut rest = value;
    loop {
        let at = rest.find(';')?;
        rest = rest[at + 1..].trim_start();
        let (name, after) = rest.split_once('=')?;
        let (found, left) = match after.strip_prefix('"') {
            Some(quoted) => {
                let end = quoted.find('"')?;
                (&quoted[..end], &quoted[end + 1..])
            }
            None => after.split_at(after.find(';').unwrap_or(after.len())),
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(found.trim().to_owned());
        }
        rest = left;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    type Read = Result<Vec<(Part, Vec<u8>)>, BlaxelError>;

    /// Reads a form that comes in pieces of a size.
    fn read(kind: &'static str, bytes: &[u8], piece: usize) -> Read {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        let pieces: Vec<_> =
            bytes.chunks(piece.max(1)).map(|it| Ok::<_, std::io::Error>(it.to_vec())).collect();
        let body = Body::from_stream(stream::iter(pieces));
        let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tokio.block_on(async {
            let mut form = Form::new(&headers, body, Duration::from_secs(5))?;
            let mut parts = Vec::new();
            while let Some(part) = form.next().await? {
                let mut all = Vec::new();
                while let Some(chunk) = form.chunk().await? {
                    all.extend_from_slice(&chunk);
                }
                parts.push((part, all));
            }
            Ok(parts)
        })
    }

    const KIND: &str = "multipart/form-data; boundary=\"b0\"";

    fn file(bytes: &[u8]) -> Vec<u8> {
        let head =
            b"--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a;b\"\r\n\r\n";
        [&head[..], bytes, b"\r\n--b0--\r\n"].concat()
    }

    #[test]
    fn form_parts_are_read_with_their_names() {
        let text = "preamble\r\n--b0\r\ncontent-disposition: form-data; name=permissions\r\n\r\n0600\
                    \r\n--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\
                    Content-Type: application/octet-stream\r\n\r\n\r\n--b1\r\n--b0--";
        let parts = read(KIND, text.as_bytes(), 7).unwrap();
        let part = |name: &str, is_file| Part { name: name.to_owned(), is_file };
        let expected = [
            (part("permissions", false), b"0600".to_vec()),
            (part("file", true), b"\r\n--b1".to_vec()),
        ];
        assert_eq!(parts, expected);
        assert_eq!(read(KIND, b"--b0--", 100).unwrap(), []);
    }

    #[test]
    fn malformed_form_is_refused() {
        assert!(read("multipart/form-data", b"", 9).is_err());
        assert!(read("multipart/form-data; boundary=", b"", 9).is_err());
        for bad in ["", "--b0", "--b0\r\nname: x", "--b0\r\n\r\nno end", "nothing of it"] {
            assert!(read(KIND, bad.as_bytes(), 3).is_err(), "{bad}");
        }
        let long = ["--b0\r\nA: ".to_owned(), "x".repeat(HEAD_BYTES_MAX + 9)].concat();
        assert!(read(KIND, long.as_bytes(), 1000).is_err());
        let many = "--b0\r\n\r\n\r\n".repeat(PARTS_MAX + 1) + "--b0--";
        assert!(read(KIND, many.as_bytes(), 1000).is_err());
    }

    proptest! {
        #[test]
        fn files_come_out_as_they_went_in(bytes: Vec<u8>, piece in 1_usize..40) {
            let parts = read(KIND, &file(&bytes), piece).unwrap();
            prop_assert_eq!(&parts[0].1, &bytes);
            prop_assert!(parts[0].0.is_file);
        }

        #[test]
        fn files_that_look_like_boundaries_do_too(text in "[\r\n\\-b0]{0,60}", piece in 1_usize..9) {
            prop_assume!(!text.contains("\r\n--b0") && !text.starts_with("--b0"));
            let parts = read(KIND, &file(text.as_bytes()), piece).unwrap();
            prop_assert_eq!(&parts[0].1, text.as_bytes());
        }
    }
}
