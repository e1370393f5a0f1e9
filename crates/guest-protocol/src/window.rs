//! Flow control of one lane of a channel: how much may be sent, how much may arrive, and when
//! credit is given back. It must never let a side have more in flight than one window.

use crate::error::ProtocolError;

/// How much may be sent on a lane, per direction, before credit comes back.
pub const INITIAL_WINDOW_BYTES: u32 = 256 * 1024;

/// Credit is given back in pieces of at least this size, so that it costs few frames.
const CREDIT_BATCH_BYTES: u32 = INITIAL_WINDOW_BYTES / 2;

/// Names a lane in errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneName {
    pub(crate) channel: u32,
    pub(crate) lane: u8,
}

/// Both directions of a lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    /// How much may be sent now.
    to_send: u32,
    /// How much may still arrive.
    to_arrive: u32,
    /// How much was consumed and not given back yet.
    consumed: u32,
    /// Nothing more is sent.
    pub(crate) end_sent: bool,
    /// Nothing more may arrive.
    end_arrived: bool,
    /// Abandoned by this side: what arrives is dropped.
    pub(crate) reset_sent: bool,
    /// Abandoned by the other side.
    pub(crate) reset_arrived: bool,
}

impl Lane {
    pub(crate) const NEW: Self = Self {
        to_send: INITIAL_WINDOW_BYTES,
        to_arrive: INITIAL_WINDOW_BYTES,
        consumed: 0,
        end_sent: false,
        end_arrived: false,
        reset_sent: false,
        reset_arrived: false,
    };

    pub(crate) fn is_abandoned(&self) -> bool {
        self.reset_sent || self.reset_arrived
    }

    /// How much may be sent now.
    pub(crate) fn window(&self) -> usize {
        if self.end_sent || self.is_abandoned() { 0 } else { self.to_send as usize }
    }

    /// Takes bytes that are being sent from the window.
    pub(crate) fn send(&mut self, bytes: usize) {
        self.to_send -= bytes as u32;
    }

    /// Credit came. Returns whether the lane can be written again after it could not.
    pub(crate) fn credit(
        &mut self,
        name: LaneName,
        credit_bytes: u32,
    ) -> Result<bool, ProtocolError> {
        let LaneName { channel, lane } = name;
        let in_flight = INITIAL_WINDOW_BYTES - self.to_send;
        if credit_bytes == 0 || credit_bytes > in_flight {
            return Err(ProtocolError::BadCredit { channel, lane, credit_bytes });
        }
        let had_run_out = self.to_send == 0;
        self.to_send += credit_bytes;
        Ok(had_run_out && !self.end_sent)
    }

    /// Data arrived.
    pub(crate) fn arrived(&mut self, name: LaneName, bytes: usize) -> Result<(), ProtocolError> {
        let LaneName { channel, lane } = name;
        if self.end_arrived {
            return Err(ProtocolError::AfterEnd { channel, lane });
        }
        let Some(left) = (self.to_arrive as usize).checked_sub(bytes) else {
            let excess_bytes = bytes - self.to_arrive as usize;
            return Err(ProtocolError::WindowExceeded { channel, lane, excess_bytes });
        };
        self.to_arrive = left as u32;
        Ok(())
    }

    /// The end of the other side arrived.
    pub(crate) fn ended(&mut self, name: LaneName) -> Result<(), ProtocolError> {
        let LaneName { channel, lane } = name;
        if self.end_arrived {
            return Err(ProtocolError::AfterEnd { channel, lane });
        }
        self.end_arrived = true;
        Ok(())
    }

    /// Data was consumed. Returns the credit to give back now, if any.
    pub(crate) fn consumed(&mut self, bytes: usize) -> Option<u32> {
        let held = INITIAL_WINDOW_BYTES - self.to_arrive - self.consumed;
        self.consumed += held.min(u32::try_from(bytes).unwrap_or(u32::MAX));
        if self.consumed < CREDIT_BATCH_BYTES || self.end_arrived || self.is_abandoned() {
            return None;
        }
        let credit = std::mem::take(&mut self.consumed);
        self.to_arrive += credit;
        Some(credit)
    }
}
