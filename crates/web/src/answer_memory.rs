//! The memory of answers, from the output of a program until the client has taken the last byte.
//! Output is counted while it is collected, as large as its JSON becomes; without room it is cut
//! and marked as cut. Other answers are counted when they are made: one that only reads is refused
//! without room, and one that changed something is sent in any case.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use engine::output_room::OutputRoom;
use http_body::{Frame, SizeHint};

use crate::account::Account;
use crate::body_memory::{BodyMemory, FREE_BYTES, Share};

/// The room for the output of the programs of one request.
pub(crate) struct AnswerRoom {
    memory: BodyMemory,
    copies: AtomicU64,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    share: Share,
    bytes: u64,
}

impl AnswerRoom {
    pub(crate) fn new(memory: BodyMemory) -> Self {
        Self { memory, copies: AtomicU64::new(1), taken: Mutex::default() }
    }

    pub(crate) fn set_copies(&self, copies: u64) {
        self.copies.store(copies, Ordering::Relaxed);
    }

    /// Gives away what was counted.
    fn share(&self) -> Share {
        std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner)).share
    }
}

impl OutputRoom for AnswerRoom {
    fn take(&self, output: &[u8]) -> bool {
        let copies = self.copies.load(Ordering::Relaxed);
        // The output itself is in memory while its JSON is made.
        let more = output.len() as u64 + copies * json_bytes(output);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = taken.bytes + more;
        let has_room = taken.share.grow_to(&self.memory, bytes).is_ok();
        if has_room {
            taken.bytes = bytes;
        }
        has_room
    }
}

/// The size of a text in JSON. Bytes that are no text become larger than themselves too.
fn json_bytes(text: &[u8]) -> u64 {
    let size = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        0x20..0x80 => 1,
        // As base64, or replaced by a mark of three bytes.
        0x80.. => 3,
    };
    text.iter().map(size).sum()
}

/// Counts an answer for the key of its request until it is sent.
pub(crate) fn hold(account: &Account, only_reads: bool, response: Response) -> Response {
    let mut share = account.room.share();
    let Some(bytes) = http_body::Body::size_hint(response.body()).exact() else { return response };
    if bytes <= FREE_BYTES {
        return response;
    }
    // A handler may have counted the answer already.
    let elsewhere = account.payer.held().saturating_sub(share.counted());
    let bytes = bytes.saturating_sub(elsewhere);
    share.shrink_to(bytes);
    let memory = &account.room.memory;
    if !only_reads {
        share.count(memory, bytes);
    } else if let Err(refused) = share.grow_to(memory, bytes) {
        return refused.into_response();
    }
    let share = Arc::new(share);
    response.map(|body| Body::new(Counted { body, share }))
}

/// A body whose bytes are counted.
struct Counted {
    body: Body,
    share: Arc<Share>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let share = Arc::clone(&self.share);
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        // A connection lets go of the body as soon as it has the bytes, which may be long before
        // it has written them.
        let held = |bytes| Bytes::from_owner(Owned { bytes, _share: share });
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(held))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes, and the memory that is counted for them.
struct Owned {
    bytes: Bytes,
    _share: Arc<Share>,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use model::{ErrorCode, KeyId};

    use super::*;
    use crate::account::Payer;
    use crate::refused::Refused;

    const EVE: KeyId = KeyId::from_u128(2);

    #[test]
    fn output_is_counted_as_large_as_its_json() {
        for text in ["plain", "\"quoted\" \\ \n\t", "\u{1}\u{2}\u{1f}", "", "é\u{7f}"] {
            let written = serde_json::to_string(text).unwrap().len() as u64 - 2;
            assert!(json_bytes(text.as_bytes()) >= written, "{text:?}");
        }
        assert_eq!(json_bytes(b"a\n\x01\xff"), 1 + 2 + 6 + 3);
    }

    #[test]
    fn output_without_room_is_refused_and_what_was_there_stays() {
        let memory = BodyMemory::new(1 << 20);
        let account = Account::new(Payer::new(EVE, None), &memory);
        account.clone().sync_scope(|| {
            let piece = vec![b'x'; 100 << 10];
            let kept = (0..20).filter(|_| account.room.take(&piece)).count();
            assert_eq!(kept, 5, "twice 100 KiB each, of 1 MiB");
            assert!(!account.room.take(&piece));
        });
        assert!(memory.held(EVE) > 900 << 10);
        drop(account);
        assert_eq!(memory.held(EVE), 0);
    }

    #[tokio::test]
    async fn an_answer_is_counted_until_its_bytes_are_dropped() {
        let memory = BodyMemory::new(1 << 20);
        let account = Account::new(Payer::new(EVE, None), &memory);
        account.clone().sync_scope(|| assert!(account.room.take(&vec![1; 1 << 17])));
        let before = memory.held(EVE);
        assert_eq!(before, 7 * (1 << 17) - FREE_BYTES);
        let answer = Response::new(Body::from(vec![b'x'; 1 << 18]));
        let response = account.clone().sync_scope(|| hold(&account, false, answer));
        drop(account);
        assert_eq!(memory.held(EVE), (1 << 18) - FREE_BYTES, "the estimate gave way to the answer");
        let mut body = response.into_body();
        let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert_eq!(memory.held(EVE), (1 << 18) - FREE_BYTES, "the connection has the bytes");
        drop(bytes);
        assert_eq!(memory.held(EVE), 0);
    }

    #[tokio::test]
    async fn without_room_a_reading_answer_is_refused_and_another_is_sent() {
        let memory = BodyMemory::new(1 << 20);
        let large = || Response::new(Body::from(vec![b'x'; 2 << 20]));
        let account = Account::new(Payer::new(EVE, None), &memory);
        let refused = account.clone().sync_scope(|| hold(&account, true, large()));
        let code = refused.extensions().get::<Refused>().map(|refused| refused.refusal.code);
        assert_eq!(code, Some(ErrorCode::Overloaded));
        let sent = account.clone().sync_scope(|| hold(&account, false, large()));
        assert_eq!(memory.held(EVE), (2 << 20) - FREE_BYTES);
        drop(sent);
        assert_eq!(memory.held(EVE), 0);
    }
}
