//! Where the body of a request ends. It must never let bytes pass as a body that a server could take
//! for the next request: chunks are plain, and no framing is guessed.

use super::Refusal;
use super::message::{Framing, Scan};

/// What is left of the body of one request.
#[derive(Debug)]
pub(super) enum Body {
    /// So many bytes.
    Length(u64),
    /// The line with the size of a chunk, after the end of the chunk before it.
    ChunkSize {
        after_chunk: bool,
    },
    /// What follows the last chunk.
    Trailers(Scan),
    Ended,
    Refused(Refusal),
}

/// The next part of a body.
pub(super) enum Piece {
    NeedMore,
    /// So many bytes pass.
    Pass(u64),
    End,
}

/// More digits would be more bytes than anybody sends.
const SIZE_DIGITS_MAX: usize = 15;
const TRAILERS_MAX: usize = 32;

impl Body {
    pub(super) fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::ChunkSize { after_chunk: false },
        }
    }

    /// The next part. `buffer` begins where the last one ended. All chunks that begin in the buffer are
    /// one part, so that many small ones are as little work as a large one.
    pub(super) fn next(&mut self, buffer: &[u8]) -> Result<Piece, Refusal> {
        let mut passing: u64 = 0;
        loop {
            let at = usize::try_from(passing).unwrap_or(usize::MAX);
            let Some(rest) = buffer.get(at..) else { return Ok(Piece::Pass(passing)) };
            match self.one(rest) {
                Ok(Piece::Pass(count)) => passing += count,
                Ok(Piece::NeedMore | Piece::End) if passing > 0 => {
                    return Ok(Piece::Pass(passing));
                }
                // What is before it passes first.
                Err(refusal) if passing > 0 => {
                    *self = Self::Refused(refusal);
                    return Ok(Piece::Pass(passing));
                }
                other => return other,
            }
        }
    }

    fn one(&mut self, buffer: &[u8]) -> Result<Piece, Refusal> {
        match self {
            Self::Length(0) | Self::Ended => Ok(Piece::End),
            Self::Refused(refusal) => Err(*refusal),
            Self::Length(length) => {
                let length = *length;
                *self = Self::Ended;
                Ok(Piece::Pass(length))
            }
            Self::ChunkSize { after_chunk } => {
                let Some((line, size)) = chunk_size(buffer, *after_chunk)? else {
                    return Ok(Piece::NeedMore);
                };
                *self = match size {
                    0 => Self::Trailers(Scan::default()),
                    _ => Self::ChunkSize { after_chunk: true },
                };
                Ok(Piece::Pass(line + size))
            }
            Self::Trailers(scan) => {
                let Some(end) = scan.end(buffer)? else { return Ok(Piece::NeedMore) };
                check_trailers(&buffer[..end])?;
                *self = Self::Ended;
                Ok(Piece::Pass(end as u64))
            }
        }
    }
}

/// The length of the line with the size of a chunk, and the size. Only digits may stand in it: what
/// servers make of anything else differs.
fn chunk_size(buffer: &[u8], after_chunk: bool) -> Result<Option<(u64, u64)>, Refusal> {
    const UNCLEAR: Refusal = Refusal::unclear("a chunk of the request is not well formed");
    let before: &[u8] = if after_chunk { b"\r\n" } else { b"" };
    if buffer.iter().zip(before).any(|(byte, expected)| byte != expected) {
        return Err(UNCLEAR);
    }
    let line = buffer.get(before.len()..).unwrap_or_default();
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    if digits > SIZE_DIGITS_MAX || (digits == 0 && !line.is_empty()) {
        return Err(UNCLEAR);
    }
    let (size, end) = line.split_at(digits);
    if end.iter().zip(b"\r\n").any(|(byte, expected)| byte != expected) {
        return Err(UNCLEAR);
    }
    if end.len() < 2 {
        return Ok(None);
    }
    let size = std::str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size, 16).ok());
    let length = before.len() + digits + 2;
    size.map(|size| Some((length as u64, size))).ok_or(UNCLEAR)
}

/// Headers after the body may say something about the body, and nothing about where requests begin.
fn check_trailers(bytes: &[u8]) -> Result<(), Refusal> {
    const UNCLEAR: Refusal = Refusal::unclear("what follows the chunks is not well formed");
    let mut headers = [httparse::EMPTY_HEADER; TRAILERS_MAX];
    let Ok(httparse::Status::Complete((length, headers))) =
        httparse::parse_headers(bytes, &mut headers)
    else {
        return Err(UNCLEAR);
    };
    let decides = |header: &httparse::Header<'_>| super::message::decides_framing(header.name);
    if length != bytes.len() || headers.iter().any(decides) {
        return Err(UNCLEAR);
    }
    Ok(())
}
