//! Reads the answer of a host to the wish for a WebSocket, as far as its status. It must never take a
//! host for switched that did not say so: from then on nothing is checked.

/// The most bytes that may stand before the status that counts.
const BYTES_MAX: usize = 64 << 10;
/// `HTTP/1.1 101`.
const STATUS_END: usize = 12;

/// Reads the first answer on a connection, to know whether the host switches to another protocol.
#[derive(Debug, Default)]
pub(crate) struct UpgradeAnswer {
    held: Vec<u8>,
    /// Where the next head begins.
    head: usize,
    /// How far its end was looked for.
    scanned: usize,
}

/// Whether a host switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answered {
    NeedMore,
    Switched,
    Stays,
    Refused(&'static str),
}

impl UpgradeAnswer {
    /// Reads on: these are the next bytes from the host. They pass to the client anyway.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Answered {
        let room = BYTES_MAX.saturating_sub(self.held.len());
        self.held.extend_from_slice(&bytes[..bytes.len().min(room)]);
        loop {
            let head = self.held.get(self.head..).unwrap_or_default();
            let Some(line) = head.get(..STATUS_END) else { break };
            match status(line) {
                None => return Answered::Refused("the host does not answer as HTTP/1.1 does"),
                Some(101) => return Answered::Switched,
                // Something that comes before the answer.
                Some(100..=199) => {}
                Some(_) => return Answered::Stays,
            }
            let from = self.scanned.max(self.head);
            let rest = self.held.get(from..).unwrap_or_default();
            let Some(at) = rest.windows(4).position(|four| four == b"\r\n\r\n") else {
                self.scanned = self.held.len().saturating_sub(3);
                break;
            };
            self.head = from + at + 4;
            self.scanned = self.head;
        }
        if bytes.len() > room {
            return Answered::Refused("the host does not come to its answer");
        }
        Answered::NeedMore
    }
}

fn status(line: &[u8]) -> Option<u16> {
    let digits = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let plain = digits.iter().all(u8::is_ascii_digit);
    let number = digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(*digit & 15));
    (plain && number >= 100).then_some(number)
}
