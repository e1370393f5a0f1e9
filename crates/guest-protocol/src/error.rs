//! How the other side can break the protocol. Each error is final: the connection is closed,
//! because nothing that follows can be trusted.

use thiserror::Error;

/// What was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// The length of a frame does not even cover its header.
    #[error("a frame says it is {length_bytes} bytes long, which is less than its header")]
    ShortFrame {
        /// The length.
        length_bytes: u32,
    },
    /// A number that is not a kind of frame.
    #[error("{kind} is no kind of frame")]
    UnknownKind {
        /// The number.
        kind: u8,
    },
    /// A payload has a size that its kind of frame may not have.
    #[error("a frame of kind {kind} has a payload of {payload_bytes} bytes")]
    BadPayloadSize {
        /// The kind of frame.
        kind: u8,
        /// The size.
        payload_bytes: usize,
    },
    /// A message is longer than a message may be.
    #[error("a message of {message_bytes} bytes is too long")]
    MessageTooLong {
        /// Its size.
        message_bytes: usize,
    },
    /// A payload is not the expected message.
    #[error("a message cannot be understood")]
    BadMessage,
    /// A frame on a channel that was never opened.
    #[error("a frame on channel {channel}, which was never opened")]
    UnknownChannel {
        /// The channel.
        channel: u32,
    },
    /// A lane that no channel has.
    #[error("a frame on lane {lane} of channel {channel}: there is no such lane")]
    UnknownLane {
        /// The channel.
        channel: u32,
        /// The lane.
        lane: u8,
    },
    /// The other side opened more channels than may be open at once.
    #[error("more than {limit} channels at once")]
    TooManyChannels {
        /// How many there may be.
        limit: usize,
    },
    /// More data than the credit allows.
    #[error("{excess_bytes} bytes more than allowed on lane {lane} of channel {channel}")]
    WindowExceeded {
        /// The channel.
        channel: u32,
        /// The lane.
        lane: u8,
        /// How much too much.
        excess_bytes: usize,
    },
    /// More credit than data was sent.
    #[error(
        "credit of {credit_bytes} bytes for data that was never sent on lane {lane} of channel {channel}"
    )]
    BadCredit {
        /// The channel.
        channel: u32,
        /// The lane.
        lane: u8,
        /// The credit.
        credit_bytes: u32,
    },
    /// Data, or another end, after the end of a lane.
    #[error("data after the end of lane {lane} of channel {channel}")]
    AfterEnd {
        /// The channel.
        channel: u32,
        /// The lane.
        lane: u8,
    },
}
