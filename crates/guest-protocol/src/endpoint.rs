//! One side of a connection, without I/O: received bytes become messages and data; messages and
//! data become bytes to write. It must never wait, and never hold memory while idle: thousands of
//! endpoints are idle at once.

use std::collections::VecDeque;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ProtocolError;
use crate::frame::{
    Decoder, HEADER_BYTES, Header, Kind, MAX_DATA_BYTES, MAX_MESSAGE_BYTES, Payload,
};
use crate::message::{GUEST_CHANNEL, lane::LANES};
pub use crate::window::INITIAL_WINDOW_BYTES;
use crate::window::{Lane, LaneName};

/// How many channels the host may have open at once.
pub const MAX_CHANNELS: usize = 4096;

/// Capacity for channels that an endpoint keeps when the last one closes.
const KEPT_CHANNELS: usize = 4;

/// Sent bytes are removed from the buffer when they are at least this many.
const COMPACT_BYTES: usize = 64 * 1024;

/// Something that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// A message, to be read with [`decode`].
    Message {
        /// Its channel.
        channel: u32,
        /// Its bytes.
        payload: Vec<u8>,
    },
    /// Bytes of a lane. After handling them, the receiver calls [`Endpoint::consumed`].
    Data {
        /// Its channel.
        channel: u32,
        /// Its lane.
        lane: u8,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The other side has ended its direction of this lane.
    End {
        /// Its channel.
        channel: u32,
        /// Its lane.
        lane: u8,
    },
    /// The other side has abandoned this lane: it neither sends nor reads any further.
    Reset {
        /// Its channel.
        channel: u32,
        /// Its lane.
        lane: u8,
    },
    /// A lane whose window had run out can be written again.
    Writable {
        /// Its channel.
        channel: u32,
        /// Its lane.
        lane: u8,
    },
}

impl Incoming {
    fn channel(&self) -> u32 {
        match *self {
            Self::Message { channel, .. }
            | Self::Data { channel, .. }
            | Self::End { channel, .. }
            | Self::Reset { channel, .. }
            | Self::Writable { channel, .. } => channel,
        }
    }
}

impl Incoming {
    fn held_bytes(&self) -> usize {
        match self {
            Self::Message { payload: bytes, .. } | Self::Data { bytes, .. } => bytes.capacity(),
            Self::End { .. } | Self::Reset { .. } | Self::Writable { .. } => 0,
        }
    }
}

/// Which side opens channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opener {
    Here,
    There,
}

/// One side of a connection.
///
/// A channel is open from its first message until [`Endpoint::close`]. Frames for a closed channel
/// are dropped; frames for a channel that was never open break the protocol.
#[derive(Debug)]
pub struct Endpoint {
    opener: Opener,
    decoder: Decoder,
    broken: Option<ProtocolError>,
    incoming: VecDeque<Incoming>,
    outgoing: Vec<u8>,
    sent_bytes: usize,
    /// Sorted by number.
    channels: Vec<(u32, [Lane; LANES])>,
    highest_channel: u32,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self::new()
    }
}

impl Endpoint {
    /// The side that opens channels: the host. The other side may use those only, and
    /// [`GUEST_CHANNEL`].
    pub fn new() -> Self {
        Self::with(Opener::Here)
    }

    /// The side that accepts channels: the guest.
    pub fn accepting() -> Self {
        Self::with(Opener::There)
    }

    fn with(opener: Opener) -> Self {
        Self {
            opener,
            decoder: Decoder::default(),
            broken: None,
            incoming: VecDeque::new(),
            outgoing: Vec::new(),
            sent_bytes: 0,
            channels: Vec::new(),
            highest_channel: GUEST_CHANNEL,
        }
    }

    /// Takes received bytes, split anywhere. An error is final and returned again by later calls;
    /// what arrived completely before it can still be taken with `next`.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        self.take(bytes).inspect_err(|&error| {
            self.broken = Some(error);
            self.decoder = Decoder::default();
        })
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), ProtocolError> {
        while let Some((header, payload)) = self.decoder.next(&mut bytes)? {
            match header.kind {
                Kind::Message => self.take_message(header.channel, payload)?,
                Kind::Data | Kind::Credit | Kind::End | Kind::Reset => {
                    self.take_lane(header, payload)?;
                }
            }
        }
        Ok(())
    }

    fn take_message(&mut self, channel: u32, payload: Payload<'_>) -> Result<(), ProtocolError> {
        let known = match self.opener {
            Opener::Here => channel == GUEST_CHANNEL || self.place(channel).is_some(),
            Opener::There => self.place(channel).is_some(),
        };
        if !known {
            if channel == GUEST_CHANNEL {
                return Err(ProtocolError::UnknownChannel { channel });
            }
            if channel <= self.highest_channel {
                return Ok(());
            }
            match self.opener {
                Opener::Here => return Err(ProtocolError::UnknownChannel { channel }),
                Opener::There if self.channels.len() >= MAX_CHANNELS => {
                    return Err(ProtocolError::TooManyChannels { limit: MAX_CHANNELS });
                }
                Opener::There => self.open(channel),
            }
        }
        self.incoming.push_back(Incoming::Message { channel, payload: payload.into_vec() });
        Ok(())
    }

    fn take_lane(&mut self, header: Header, payload: Payload<'_>) -> Result<(), ProtocolError> {
        let Header { channel, lane, .. } = header;
        let name = LaneName { channel, lane };
        if usize::from(lane) >= LANES {
            return Err(ProtocolError::UnknownLane { channel, lane });
        }
        if channel == GUEST_CHANNEL || channel > self.highest_channel {
            return Err(ProtocolError::UnknownChannel { channel });
        }
        let Some(state) = self.lane_mut(channel, lane) else { return Ok(()) };
        if state.is_abandoned() {
            // The other side may not know yet, or abandons the lane too.
            return Ok(());
        }
        let incoming = match header.kind {
            Kind::Data => {
                state.arrived(name, header.payload_bytes)?;
                Incoming::Data { channel, lane, bytes: payload.into_vec() }
            }
            Kind::Credit => {
                let bytes = payload.as_slice().try_into().unwrap_or_default();
                if !state.credit(name, u32::from_le_bytes(bytes))? {
                    return Ok(());
                }
                Incoming::Writable { channel, lane }
            }
            Kind::End => {
                state.ended(name)?;
                Incoming::End { channel, lane }
            }
            Kind::Reset => {
                state.reset_arrived = true;
                Incoming::Reset { channel, lane }
            }
            Kind::Message => return Ok(()),
        };
        self.incoming.push_back(incoming);
        Ok(())
    }

    /// The next thing that arrived.
    #[expect(clippy::should_implement_trait, reason = "more may come after `None`")]
    pub fn next(&mut self) -> Option<Incoming> {
        while let Some(incoming) = self.incoming.pop_front() {
            if self.incoming.is_empty() {
                self.incoming = VecDeque::new();
            }
            if self.is_wanted(&incoming) {
                return Some(incoming);
            }
        }
        None
    }

    /// False for what belongs to a channel or lane that was abandoned meanwhile.
    fn is_wanted(&self, incoming: &Incoming) -> bool {
        let channel = incoming.channel();
        let Some(place) = self.place(channel) else { return channel == GUEST_CHANNEL };
        let lanes = &self.channels[place].1;
        match *incoming {
            Incoming::Message { .. } => true,
            Incoming::Data { lane, .. }
            | Incoming::End { lane, .. }
            | Incoming::Reset { lane, .. }
            | Incoming::Writable { lane, .. } => !lanes[usize::from(lane)].reset_sent,
        }
    }

    /// Queues a message. The first on a channel opens it, if this side opens channels. If the
    /// message is too long, returns an error and queues nothing.
    pub fn send<M: Serialize>(&mut self, channel: u32, message: &M) -> Result<(), ProtocolError> {
        let start = self.outgoing.len();
        self.outgoing.extend_from_slice(&[0; HEADER_BYTES]);
        if postcard::to_extend(message, Tail(&mut self.outgoing)).is_err() {
            self.outgoing.truncate(start);
            return Err(ProtocolError::BadMessage);
        }
        let message_bytes = self.outgoing.len() - start - HEADER_BYTES;
        if message_bytes > MAX_MESSAGE_BYTES {
            self.outgoing.truncate(start);
            return Err(ProtocolError::MessageTooLong { message_bytes });
        }
        let header = Header { channel, kind: Kind::Message, lane: 0, payload_bytes: message_bytes };
        self.outgoing[start..][..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        if self.opener == Opener::Here && channel > self.highest_channel {
            self.open(channel);
        }
        Ok(())
    }

    /// How many bytes may be sent on a lane now.
    pub fn window(&self, channel: u32, lane: u8) -> usize {
        self.place(channel)
            .and_then(|place| self.channels[place].1.get(usize::from(lane)))
            .map_or(0, Lane::window)
    }

    /// Queues as much data as the window allows, and returns how much that was.
    pub fn send_data(&mut self, channel: u32, lane: u8, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.window(channel, lane));
        let Some(state) = self.lane_mut(channel, lane) else { return 0 };
        state.send(taken);
        for piece in bytes[..taken].chunks(MAX_DATA_BYTES) {
            self.queue(channel, Kind::Data, lane, piece);
        }
        taken
    }

    /// Ends this side's direction of a lane.
    pub fn end(&mut self, channel: u32, lane: u8) {
        if let Some(state) = self.lane_mut(channel, lane)
            && !state.end_sent
            && !state.is_abandoned()
        {
            state.end_sent = true;
            self.queue(channel, Kind::End, lane, &[]);
        }
    }

    /// Abandons a lane: nothing more is sent on it, and what still arrives is dropped.
    pub fn reset(&mut self, channel: u32, lane: u8) {
        if let Some(state) = self.lane_mut(channel, lane)
            && !state.reset_sent
        {
            state.reset_sent = true;
            if !state.reset_arrived {
                self.queue(channel, Kind::Reset, lane, &[]);
            }
        }
    }

    /// Says that received data was handled, so that more may come. Credit goes back when half a
    /// window has gathered.
    pub fn consumed(&mut self, channel: u32, lane: u8, bytes: usize) {
        if let Some(state) = self.lane_mut(channel, lane)
            && let Some(credit) = state.consumed(bytes)
        {
            self.queue(channel, Kind::Credit, lane, &credit.to_le_bytes());
        }
    }

    /// Forgets a channel. What still arrives for it is dropped.
    pub fn close(&mut self, channel: u32) {
        if let Some(place) = self.place(channel) {
            self.channels.remove(place);
            if self.channels.is_empty() && self.channels.capacity() > KEPT_CHANNELS {
                self.channels = Vec::new();
            }
        }
    }

    /// How many channels are open.
    pub fn open_channels(&self) -> usize {
        self.channels.len()
    }

    /// How much memory the buffers of this side hold. None while idle.
    pub fn held_bytes(&self) -> usize {
        let waiting: usize = self.incoming.iter().map(Incoming::held_bytes).sum();
        waiting
            + self.incoming.capacity() * size_of::<Incoming>()
            + self.decoder.held_bytes()
            + self.outgoing.capacity()
            + self.channels.capacity() * size_of::<(u32, [Lane; LANES])>()
    }

    /// Bytes to be written.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.sent_bytes..]
    }

    /// Says that the first `bytes` of [`Endpoint::outgoing`] were written.
    pub fn sent(&mut self, bytes: usize) {
        self.sent_bytes = self.outgoing.len().min(self.sent_bytes + bytes);
        if self.sent_bytes == self.outgoing.len() {
            self.outgoing = Vec::new();
            self.sent_bytes = 0;
        } else if self.sent_bytes >= COMPACT_BYTES && self.sent_bytes * 2 >= self.outgoing.len() {
            self.outgoing.drain(..self.sent_bytes);
            self.sent_bytes = 0;
        }
    }

    fn queue(&mut self, channel: u32, kind: Kind, lane: u8, payload: &[u8]) {
        let header = Header { channel, kind, lane, payload_bytes: payload.len() };
        self.outgoing.reserve(HEADER_BYTES + payload.len());
        self.outgoing.extend_from_slice(&header.to_bytes());
        self.outgoing.extend_from_slice(payload);
    }

    /// Numbers only grow, so the new one belongs at the end.
    fn open(&mut self, channel: u32) {
        self.highest_channel = channel;
        self.channels.push((channel, [Lane::NEW; LANES]));
    }

    fn place(&self, channel: u32) -> Option<usize> {
        self.channels.binary_search_by_key(&channel, |&(number, _)| number).ok()
    }

    fn lane_mut(&mut self, channel: u32, lane: u8) -> Option<&mut Lane> {
        let place = self.place(channel)?;
        self.channels[place].1.get_mut(usize::from(lane))
    }
}

/// Encodes a message directly behind the queued bytes.
struct Tail<'a>(&'a mut Vec<u8>);

impl Extend<u8> for Tail<'_> {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0.extend(bytes);
    }
}

/// Decodes a message, which must use the whole payload.
pub fn decode<M: DeserializeOwned>(payload: &[u8]) -> Result<M, ProtocolError> {
    match postcard::take_from_bytes(payload) {
        Ok((message, [])) => Ok(message),
        Ok(_) | Err(_) => Err(ProtocolError::BadMessage),
    }
}
