//! Splits an answer into lines, and parses server-sent events from lines. Every buffer has a limit.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::error::ClientError;

/// The longest line: the most output that a server keeps, as base64, and some more.
const LINE_BYTES_MAX: usize = 32 << 20;

/// The lines of an answer.
pub(crate) struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
    /// How far the buffer was searched for the end of a line.
    searched: usize,
    ended: bool,
}

impl Lines {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, buffer: Vec::new(), searched: 0, ended: false }
    }

    /// The next line, without its end. Safe to drop while waiting.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, ClientError> {
        loop {
            if let Some(line) = take_line(&mut self.buffer, &mut self.searched, self.ended) {
                let text = String::from_utf8(line);
                return text.map(Some).map_err(|_| ClientError::cut("a line is not UTF-8"));
            }
            if self.ended {
                return Ok(None);
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(ClientError::cut(format!(
                    "a line is longer than {LINE_BYTES_MAX} bytes"
                )));
            }
            match piece(&mut self.body).await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => self.ended = true,
            }
        }
    }
}

/// The next bytes of an answer.
pub(crate) async fn piece(body: &mut Incoming) -> Result<Option<Bytes>, ClientError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(ClientError::cut)?;
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

fn take_line(buffer: &mut Vec<u8>, searched: &mut usize, ended: bool) -> Option<Vec<u8>> {
    let found = memchr::memchr(b'\n', &buffer[*searched..]);
    let end = match found {
        Some(at) => *searched + at,
        None if ended && !buffer.is_empty() => buffer.len(),
        None => {
            *searched = buffer.len();
            return None;
        }
    };
    let rest = buffer.split_off((end + 1).min(buffer.len()));
    let mut line = std::mem::replace(buffer, rest);
    *searched = 0;
    line.truncate(end);
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Some(line)
}

/// One server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SseEvent {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) data: String,
}

/// Parses server-sent events, line by line.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    current: SseEvent,
    has_data: bool,
}

impl SseParser {
    /// Takes a line, and gives the event that it completes.
    pub(crate) fn line(&mut self, line: &str) -> Option<SseEvent> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.current);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.current.name),
            "id" => self.current.id = Some(value.to_owned()),
            "data" => {
                if self.has_data {
                    self.current.data.push('\n');
                }
                self.current.data.push_str(value);
                self.has_data = true;
            }
            // Comments (heartbeats) begin with a colon. Unknown fields are ignored.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_however_the_bytes_arrive() {
        let text = b"one\r\n\ntwo\nlast";
        for size in 1..=text.len() {
            let (mut buffer, mut searched, mut lines) = (Vec::new(), 0, Vec::new());
            for piece in text.chunks(size) {
                buffer.extend_from_slice(piece);
                while let Some(line) = take_line(&mut buffer, &mut searched, false) {
                    lines.push(String::from_utf8(line).unwrap());
                }
            }
            while let Some(line) = take_line(&mut buffer, &mut searched, true) {
                lines.push(String::from_utf8(line).unwrap());
            }
            assert_eq!(lines, ["one", "", "two", "last"], "pieces of {size}");
        }
    }

    #[test]
    fn server_sent_events_are_parsed() {
        let mut events = SseParser::default();
        let text = ": beat\n\nevent: a\nid: 7\ndata: x\ndata: y\n\nretry: 5\n\ndata:z\n\nid: 8\n\n";
        let parsed: Vec<_> = text.lines().filter_map(|line| events.line(line)).collect();
        let expected = [("a", Some("7"), "x\ny"), ("", None, "z")];
        assert_eq!(parsed.len(), expected.len());
        for (event, (name, id, data)) in parsed.iter().zip(expected) {
            assert_eq!((&*event.name, event.id.as_deref(), &*event.data), (name, id, data));
        }
    }
}
