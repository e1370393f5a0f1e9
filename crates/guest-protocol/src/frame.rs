//! Frames as bytes: how one is written, and a decoder that takes bytes as they come, split
//! anywhere. It must never hold more than one frame, nor trust a length before checking it.
//!
//! ```text
//! length u32 LE, of all that follows | channel u32 LE | kind u8 | lane u8 | payload
//! ```

use crate::error::ProtocolError;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 10;

/// The most payload a data frame may have.
pub const MAX_DATA_BYTES: usize = 64 * 1024;

/// The most payload a message frame may have.
pub const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// The part of the header that the length includes.
const COUNTED_HEADER_BYTES: usize = 6;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A request or a reply.
    Message = 0,
    /// Bytes of a lane.
    Data = 1,
    /// That many more bytes may be sent on a lane.
    Credit = 2,
    /// The end of this direction of a lane.
    End = 3,
    /// A lane is abandoned, in both directions.
    Reset = 4,
}

impl Kind {
    fn of(number: u8) -> Result<Self, ProtocolError> {
        match number {
            0 => Ok(Self::Message),
            1 => Ok(Self::Data),
            2 => Ok(Self::Credit),
            3 => Ok(Self::End),
            4 => Ok(Self::Reset),
            kind => Err(ProtocolError::UnknownKind { kind }),
        }
    }

    /// Empty data is refused: it would be work that no window limits.
    fn allows(self, payload_bytes: usize) -> bool {
        match self {
            Self::Message => payload_bytes <= MAX_MESSAGE_BYTES,
            Self::Data => (1..=MAX_DATA_BYTES).contains(&payload_bytes),
            Self::Credit => payload_bytes == 4,
            Self::End | Self::Reset => payload_bytes == 0,
        }
    }
}

/// The fields before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which channel.
    pub channel: u32,
    /// What it is.
    pub kind: Kind,
    /// Which lane of the channel.
    pub lane: u8,
    /// How long the payload is.
    pub payload_bytes: usize,
}

impl Header {
    /// As bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let length = (self.payload_bytes + COUNTED_HEADER_BYTES) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.channel.to_le_bytes());
        bytes[8] = self.kind as u8;
        bytes[9] = self.lane;
        bytes
    }

    /// Decodes a header, and refuses an invalid one.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ProtocolError> {
        let [l0, l1, l2, l3, c0, c1, c2, c3, kind, lane] = *bytes;
        let length_bytes = u32::from_le_bytes([l0, l1, l2, l3]);
        let payload_bytes = (length_bytes as usize)
            .checked_sub(COUNTED_HEADER_BYTES)
            .ok_or(ProtocolError::ShortFrame { length_bytes })?;
        let parsed = Kind::of(kind)?;
        if !parsed.allows(payload_bytes) {
            return Err(ProtocolError::BadPayloadSize { kind, payload_bytes });
        }
        Ok(Self {
            channel: u32::from_le_bytes([c0, c1, c2, c3]),
            kind: parsed,
            lane,
            payload_bytes,
        })
    }
}

/// Assembles frames from bytes as they come. Between frames it holds no memory.
#[derive(Debug, Default)]
pub struct Decoder {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    parsed: Option<Header>,
    payload: Vec<u8>,
}

/// A payload that arrived in one piece, or that was assembled.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Still in the received bytes.
    Borrowed(&'a [u8]),
    /// Assembled from pieces.
    Owned(Vec<u8>),
}

impl Payload<'_> {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    /// The bytes, copied only if necessary.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Borrowed(bytes) => bytes.to_vec(),
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Decoder {
    /// Takes the next frame from `bytes` and from what came before, and advances `bytes` past what
    /// it used. `None`: all bytes were used, and the frame is not complete yet.
    pub fn next<'a>(
        &mut self,
        bytes: &mut &'a [u8],
    ) -> Result<Option<(Header, Payload<'a>)>, ProtocolError> {
        let header = match self.parsed {
            Some(header) => header,
            None => match self.header(bytes)? {
                Some(header) => header,
                None => return Ok(None),
            },
        };
        if self.payload.is_empty()
            && let Some((payload, rest)) = bytes.split_at_checked(header.payload_bytes)
        {
            *bytes = rest;
            self.parsed = None;
            return Ok(Some((header, Payload::Borrowed(payload))));
        }
        let missing = header.payload_bytes - self.payload.len();
        let (arrived, rest) = bytes.split_at(missing.min(bytes.len()));
        if !arrived.is_empty() {
            self.payload.reserve_exact(missing);
            self.payload.extend_from_slice(arrived);
        }
        *bytes = rest;
        if self.payload.len() < header.payload_bytes {
            self.parsed = Some(header);
            return Ok(None);
        }
        self.parsed = None;
        Ok(Some((header, Payload::Owned(std::mem::take(&mut self.payload)))))
    }

    /// How much memory it holds.
    pub fn held_bytes(&self) -> usize {
        self.payload.capacity()
    }

    fn header(&mut self, bytes: &mut &[u8]) -> Result<Option<Header>, ProtocolError> {
        let missing = HEADER_BYTES - self.header_bytes;
        let (arrived, rest) = bytes.split_at(missing.min(bytes.len()));
        self.header[self.header_bytes..][..arrived.len()].copy_from_slice(arrived);
        self.header_bytes += arrived.len();
        *bytes = rest;
        if self.header_bytes < HEADER_BYTES {
            return Ok(None);
        }
        self.header_bytes = 0;
        Header::from_bytes(&self.header).map(Some)
    }
}
