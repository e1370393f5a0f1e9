//! Reads request bodies within limits. A large one is parsed on another thread, where it blocks no
//! other request, and its memory is counted before.

use axum::extract::Request;
use bytes::Bytes;
use model::{ErrorCode, Refusal};
use serde_json::{Map, Value};
use tasks::spawn_blocking;

use super::bounded_json::{PART_BYTES, PARTS_MAX, parse};
use super::errors::AshError;
use super::fields::Fields;
use crate::app::App;
use web::body::json_bytes;
use web::body_memory::Share;

/// A larger body is parsed on another thread.
const LARGE_BYTES: usize = 256 << 10;

/// What the parts of a body may take while it is parsed.
const PARTS_BYTES: u64 = PARTS_MAX as u64 * PART_BYTES;

/// A parsed value; its memory counts while this is held.
pub(super) struct Read<T> {
    pub(super) taken: T,
    pub(super) share: Share,
}

/// The size of the largest body that can be parsed: the body and its texts are in memory at once. A
/// body that can never fit is refused for its size, without a hint to retry.
fn most(app: &App, bytes_max: u64) -> u64 {
    let memory = app.settings.body_memory_bytes;
    bytes_max.min((memory.saturating_sub(PARTS_BYTES) / 2).max(LARGE_BYTES as u64))
}

/// Takes out of the body of a request what is asked for. `take` may block for as long as it takes
/// to look at all of it.
pub(super) async fn read<T: Send + 'static>(
    request: Request,
    app: &App,
    bytes_max: u64,
    take: impl FnOnce(Fields) -> Result<T, AshError> + Send + 'static,
) -> Result<Read<T>, AshError> {
    let (bytes, share) = json_bytes(request, app, most(app, bytes_max)).await?;
    let twice = bytes.len() as u64 * 2;
    elsewhere(app, bytes, share, twice, move |bytes| take(object(bytes)?)).await
}

/// The same from the bytes of a body whose texts are not copied, and which may therefore be about
/// twice as large. Texts with escapes are copied all the same.
pub(super) async fn read_whole<T: Send + 'static>(
    request: Request,
    app: &App,
    bytes_max: u64,
    take: impl FnOnce(Bytes) -> Result<T, AshError> + Send + 'static,
) -> Result<Read<T>, AshError> {
    let memory = app.settings.body_memory_bytes.saturating_sub(PARTS_BYTES);
    let (bytes, share) =
        json_bytes(request, app, bytes_max.min(memory.max(LARGE_BYTES as u64))).await?;
    let mut needed = bytes.len() as u64;
    if memchr::memchr(b'\\', &bytes).is_some() {
        let copied_max = most(app, bytes_max);
        if needed > copied_max {
            let cause = format!("a body with escapes has more than {copied_max} bytes");
            return Err(Refusal::new(ErrorCode::TooLarge, cause).into());
        }
        needed *= 2;
    }
    elsewhere(app, bytes, share, needed, take).await
}

/// Takes a body apart, on another thread if it is large. `needed` is what the body and its copies
/// take, beside the parts.
async fn elsewhere<T: Send + 'static>(
    app: &App,
    bytes: Bytes,
    mut share: Share,
    needed: u64,
    take: impl FnOnce(Bytes) -> Result<T, AshError> + Send + 'static,
) -> Result<Read<T>, AshError> {
    if bytes.len() <= LARGE_BYTES {
        return Ok(Read { taken: take(bytes)?, share });
    }
    share.grow_to(&app.body_memory, needed + PARTS_BYTES)?;
    // The share moves along: parsing may continue after the client disconnected.
    let taking = spawn_blocking(move || {
        let taken = take(bytes);
        share.shrink_to(needed);
        taken.map(|taken| Read { taken, share })
    });
    taking.await.unwrap_or_else(|error| Err(AshError::new(500, error.to_string())))
}

/// The fields of a body that is small.
pub(super) async fn fields(
    request: Request,
    app: &App,
    bytes_max: u64,
) -> Result<Fields, AshError> {
    Ok(read(request, app, bytes_max, Ok).await?.taken)
}

/// The body of a request that may have none. An empty one is sent by clients that say it is JSON.
pub(super) async fn optional(
    request: Request,
    app: &App,
    bytes_max: u64,
) -> Result<Fields, AshError> {
    let (bytes, _share) = json_bytes(request, app, bytes_max).await?;
    if bytes.trim_ascii().is_empty() || bytes.trim_ascii() == b"null" {
        return Ok(Fields::new(Map::new()));
    }
    object(bytes)
}

fn object(bytes: Bytes) -> Result<Fields, AshError> {
    if bytes.is_empty() {
        return Err(AshError::invalid("body must be object"));
    }
    let read = parse(&bytes);
    // The texts have been copied out of it.
    drop(bytes);
    match read {
        Ok(Value::Object(map)) => Ok(Fields::new(map)),
        Ok(_) => Err(AshError::invalid("body must be object")),
        Err(error) => Err(AshError::invalid(format!("Body is not valid JSON: {error}"))),
    }
}
