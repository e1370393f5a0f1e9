//! The log of a process as lines, from its beginning to the end of the process. Every line says
//! which output it belongs to. A line that the other output interrupts is ended, and continues as a
//! new line. So is a line without new output for a while, since heartbeats stand between lines.
//! Clients that reconnect count lines to find their position: so the lines must depend only on the
//! log and its times, never on the reader.

use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use engine::{LogFollow, LogPiece, ProcessRef, Use, UseKind};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use model::Wall;
use tokio::time::sleep;

use super::errors::BlaxelError;
use super::processes::BOTH;
use super::target::Target;
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;
use web::stream::{BodySource, body};

pub(super) const KEEPALIVE: Duration = Duration::from_secs(30);
pub(super) const STILL_HERE: &[u8] = b"[keepalive]\n";
pub(super) const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// How much later than the end of a line a heartbeat is sent: a piece that came in time has arrived
/// by then.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
const BEHIND: &[u8] = b"[output truncated: the stream fell behind]\n";

/// Turns pieces of a log into lines.
#[derive(Debug, Default)]
struct Lines {
    /// The output of the line that has begun, if it is of the error output.
    open: Option<bool>,
    /// Where the next piece should begin.
    at: u64,
    /// When the piece before came.
    came: Wall,
}

impl Lines {
    fn push(&mut self, piece: &LogPiece, to: &mut Vec<u8>) {
        if piece.offset > self.at {
            self.close(to);
            to.extend_from_slice(BEHIND);
        }
        self.at = piece.offset + piece.bytes.len() as u64;
        let is_late = piece.at.0.saturating_sub(self.came.0) >= KEEPALIVE.as_millis() as u64;
        if is_late || self.open.is_some_and(|stderr| stderr != piece.stderr) {
            self.close(to);
        }
        self.came = piece.at;
        let prefix: &[u8] = if piece.stderr { b"stderr:" } else { b"stdout:" };
        for line in piece.bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.open.is_none() {
                to.extend_from_slice(prefix);
            }
            to.extend_from_slice(line);
            self.open = (!line.ends_with(b"\n")).then_some(piece.stderr);
        }
    }

    fn close(&mut self, to: &mut Vec<u8>) {
        if self.open.take().is_some() {
            to.push(b'\n');
        }
    }
}

struct LogStream {
    target: Target,
    follow: LogFollow,
    lines: Lines,
    key: KeyWatch,
    over: bool,
    _slot: LongLivedSlot,
    /// Last: the follow is a use of the sandbox.
    _used: Option<Use>,
}

pub(super) async fn response(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let record = target.process(&ProcessRef::parse(id)).await?;
    let slot = target.app.long_lived.begin(target.key)?;
    // An ended process needs no sandbox, and thaws none.
    let used = match record.end {
        None if target.now() == Some(record.sandbox) => Some(target.begin(UseKind::Stream).await?),
        None | Some(_) => None,
    };
    let of = ProcessRef::Id(record.id);
    let engine = &target.app.engine;
    let follow = engine.follow_log(target.caller, record.sandbox, &of, BOTH, 0).await?;
    let stream = LogStream {
        target: target.clone(),
        follow,
        lines: Lines::default(),
        key: KeyWatch::new(target.key),
        over: false,
        _slot: slot,
        _used: used,
    };
    let mut response = Response::new(body(stream));
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    Ok(response)
}

impl BodySource for LogStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over || !self.key.works(&self.target.app) {
                return None;
            }
            let mut text = Vec::new();
            let piece = tokio::select! {
                biased;
                piece = self.follow.next() => piece,
                () = self.target.server_stops() => Ok(None),
                () = sleep(KEEPALIVE + ON_ITS_WAY) => {
                    self.lines.close(&mut text);
                    text.extend_from_slice(STILL_HERE);
                    return Some(text.into());
                }
            };
            match piece {
                Ok(Some(piece)) => self.lines.push(&piece, &mut text),
                Ok(None) => {
                    self.over = true;
                    self.lines.close(&mut text);
                }
                Err(refusal) => {
                    self.over = true;
                    self.lines.close(&mut text);
                    text.extend_from_slice(format!("[error: {}]\n", refusal.cause).as_bytes());
                }
            }
            if !text.is_empty() {
                return Some(text.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_text(pieces: &[(bool, &'static str)]) -> String {
        let (mut lines, mut text, mut offset) = (Lines::default(), Vec::new(), 0);
        for (stderr, bytes) in pieces {
            let bytes = Bytes::from_static(bytes.as_bytes());
            let piece = LogPiece { offset, stderr: *stderr, at: Wall(0), bytes };
            lines.push(&piece, &mut text);
            offset = lines.at;
        }
        lines.close(&mut text);
        String::from_utf8(text).unwrap()
    }

    /// The fifth of what Blaxel was seen to do wrong.
    #[test]
    fn log_lines_have_a_prefix_and_never_merge_outputs() {
        let out = |text| (false, text);
        let err = |text| (true, text);
        for (pieces, expected) in [
            (vec![out("a\nb\nc\n")], "stdout:a\nstdout:b\nstdout:c\n"),
            (vec![out("AAA"), err("BBB"), out("CCC")], "stdout:AAA\nstderr:BBB\nstdout:CCC\n"),
            (vec![out("a"), out("b\n"), err("c\n")], "stdout:ab\nstderr:c\n"),
            (vec![out("\n\n")], "stdout:\nstdout:\n"),
            (vec![], ""),
        ] {
            assert_eq!(stream_text(&pieces), expected);
        }
    }

    #[test]
    fn log_line_without_new_output_is_ended_whether_or_not_it_is_read() {
        let limit = KEEPALIVE.as_millis() as u64;
        for (second_at, expected) in
            [(limit - 1, "stdout:Password: ok\n"), (limit, "stdout:Password: \nstdout:ok\n")]
        {
            for looked in [false, true] {
                let (mut lines, mut text) = (Lines::default(), Vec::new());
                let piece = |offset, at, bytes: &'static [u8]| {
                    let (at, bytes) = (Wall(1 + at), Bytes::from_static(bytes));
                    LogPiece { offset, stderr: false, at, bytes }
                };
                lines.push(&piece(0, 0, b"Password: "), &mut text);
                if looked && second_at >= limit {
                    lines.close(&mut text);
                }
                lines.push(&piece(10, second_at, b"ok\n"), &mut text);
                assert_eq!(String::from_utf8(text).unwrap(), expected);
            }
        }
    }

    #[test]
    fn log_stream_reports_output_that_is_no_longer_stored() {
        let mut lines = Lines::default();
        let mut text = Vec::new();
        let piece =
            LogPiece { offset: 9, stderr: false, at: Wall(0), bytes: Bytes::from_static(b"x\n") };
        lines.push(&piece, &mut text);
        assert_eq!(text, [BEHIND, b"stdout:x\n"].concat());
    }
}
