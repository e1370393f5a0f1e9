//! Answers that are made here and not by a host. Their text names the host and the problem, in words
//! that a program's log can show.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::{Either, Full};

use super::bodies::Passing;

/// What a client gets: what the host sent, or a text of ours.
pub(super) type Answer = Response<Either<Passing, Full<Bytes>>>;

pub(super) fn plain(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(format!("shoal: {text}\n"))));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
