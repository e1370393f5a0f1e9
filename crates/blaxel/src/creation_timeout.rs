//! `X-Blaxel-Creation-Timeout`: how long a client waits for a new sandbox, in whole seconds. It
//! bounds the wait for a place; nothing that has a place is given up because of it.

use http::HeaderMap;
use model::{ErrorCode, Refusal};

use super::errors::BlaxelError;

const HEADER: &str = "x-blaxel-creation-timeout";
/// The most that a wait may be.
const SECONDS_MAX: u64 = 600;

/// The time that a request gives to its sandbox, if it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CreationTimeout(Option<u64>);

impl CreationTimeout {
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, BlaxelError> {
        let Some(given) = headers.get(HEADER) else { return Ok(Self(None)) };
        let seconds = given.to_str().ok().and_then(|text| text.parse().ok());
        match seconds.filter(|seconds| (1..=SECONDS_MAX).contains(seconds)) {
            Some(seconds) => Ok(Self(Some(seconds))),
            None => Err(BlaxelError::bad(format!(
                "X-Blaxel-Creation-Timeout: must be a whole number of seconds from 1 to \
                 {SECONDS_MAX}"
            ))),
        }
    }

    pub(super) fn wait_ms(self) -> Option<u64> {
        self.0.map(|seconds| seconds * 1000)
    }

    /// A refusal as the client that gave this time reads it.
    pub(super) fn refused(self, refusal: Refusal) -> BlaxelError {
        let is_over = refusal.code == ErrorCode::CapacityExhausted && self.0.is_some();
        let error = BlaxelError::from(refusal);
        if is_over { error.creation_timed_out() } else { error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creation_timeout_is_a_whole_number_of_seconds() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, text.parse().unwrap());
            CreationTimeout::of(&headers)
        };
        assert_eq!(CreationTimeout::of(&HeaderMap::new()).unwrap().wait_ms(), None);
        assert_eq!(of("1").unwrap().wait_ms(), Some(1_000));
        assert_eq!(of("600").unwrap().wait_ms(), Some(600_000));
        for wrong in ["0", "601", "1.5", "-1", "soon", ""] {
            assert_eq!(of(wrong).unwrap_err().status, 400, "{wrong}");
        }
    }
}
