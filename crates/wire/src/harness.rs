//! How the WebSocket to a harness ends: with a close code to branch on, and a reason: an error code
//! and its cause, cut to the length that a WebSocket allows.

/// The program ended: its code or signal is in the cause.
pub const CLOSE_EXITED: u16 = 4000;
/// The sandbox ran out of memory, and the program with it.
pub const CLOSE_OUT_OF_MEMORY: u16 = 4001;
/// The sandbox has ended.
pub const CLOSE_SANDBOX_GONE: u16 = 4002;
/// The program wrote a line that is too long.
pub const CLOSE_LINE_TOO_LONG: u16 = 4003;
/// The program wrote bytes that are not UTF-8.
pub const CLOSE_NOT_TEXT: u16 = 4004;

/// The longest line that may be sent to a harness.
pub const HARNESS_LINE_BYTES_MAX: usize = 1 << 20;

/// The longest reason of a WebSocket close.
const REASON_BYTES_MAX: usize = 123;

/// Why a WebSocket to a harness was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HarnessClosed {
    /// The close code.
    pub number: u16,
    /// The error code.
    pub code: String,
    /// What happened, for people; perhaps cut.
    pub cause: String,
}

impl HarnessClosed {
    /// Says it.
    pub fn new(number: u16, code: &str, cause: &str) -> Self {
        Self { number, code: code.to_owned(), cause: cause.to_owned() }
    }

    /// As the reason of a close.
    pub fn reason(&self) -> String {
        let whole = format!("{}: {}", self.code, self.cause);
        whole[..whole.floor_char_boundary(REASON_BYTES_MAX)].to_owned()
    }

    /// What a close said.
    pub fn read(number: u16, reason: &str) -> Self {
        match reason.split_once(": ") {
            Some((code, cause)) => Self::new(number, code, cause),
            None => Self::new(number, reason, ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harness_close_reason_is_read_back_and_cut_to_the_limit() {
        for (cause, read) in [
            ("the harness exited with code 3: no", "the harness exited with code 3: no".to_owned()),
            (&*"ü".repeat(200), "ü".repeat((REASON_BYTES_MAX - "oom: ".len()) / 2)),
            ("", String::new()),
        ] {
            let said = HarnessClosed::new(CLOSE_OUT_OF_MEMORY, "oom", cause);
            assert!(said.reason().len() <= REASON_BYTES_MAX);
            let heard = HarnessClosed::read(said.number, &said.reason());
            assert_eq!((heard.code, heard.cause), ("oom".to_owned(), read));
        }
        assert_eq!(HarnessClosed::read(1000, "").code, "");
    }
}
