//! The two outputs of a program, as lines for its logs. It must never delay the program: a log may
//! not wait, and lines that never end are cut.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use runtime::ByteReader;
use tokio::io::AsyncReadExt as _;
use tokio::sync::oneshot;

/// A longer line is logged in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The most lines that are kept of the end of standard error: those of a stack trace.
const TAIL_LINES_MAX: usize = 40;

/// The most bytes of each of these lines.
const TAIL_LINE_BYTES_MAX: usize = 1024;

/// The most bytes of all these lines.
const TAIL_BYTES_MAX: usize = 4096;

const READ_BYTES: usize = 16 * 1024;

/// The source of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    /// The program's standard output.
    Stdout,
    /// The program's standard error.
    Stderr,
    /// A line about the program.
    System,
}

impl LogStream {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::System => "system",
        }
    }
}

/// Takes the lines that a program writes.
pub trait Logs: Send + Sync {
    /// One line, without its end and of at most 64 KiB. It must not wait.
    fn line(&self, stream: LogStream, text: &str);
}

/// The end of what a program wrote to standard error. It is more than a line, because many
/// interpreters print the error first and their own version or a stack trace last.
#[derive(Debug, Clone, Default)]
pub(crate) struct ErrorTail(Arc<Mutex<VecDeque<String>>>);

impl ErrorTail {
    /// The lines that are kept, without empty ones before and after them.
    pub(crate) fn get(&self) -> String {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.make_contiguous().join("\n").trim_matches('\n').to_owned()
    }

    fn push(&self, line: &str) {
        let line = line.trim_end();
        let line = &line[..line.floor_char_boundary(TAIL_LINE_BYTES_MAX)];
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push_back(line.to_owned());
        let mut bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
        while lines.len() > TAIL_LINES_MAX || bytes > TAIL_BYTES_MAX {
            bytes -= lines.pop_front().map_or(bytes, |oldest| oldest.len() + 1);
        }
    }
}

/// Lines of one output.
pub(crate) struct Output {
    pub stream: LogStream,
    pub logs: Arc<dyn Logs>,
    pub error_tail: ErrorTail,
    /// The byte that says that the program is ready, if it has one, and who waits for it.
    pub ready: Option<(u8, oneshot::Sender<()>)>,
}

impl Output {
    /// Reads to the end.
    pub(crate) async fn drain(mut self, reader: Option<ByteReader>) {
        let Some(mut reader) = reader else { return };
        let mut line = Vec::new();
        let mut chunk = vec![0; READ_BYTES];
        while let Ok(count) = reader.read(&mut chunk).await {
            if count == 0 {
                break;
            }
            self.take(&chunk[..count], &mut line);
        }
        if !line.is_empty() {
            self.tell(&line);
        }
    }

    fn take(&mut self, bytes: &[u8], line: &mut Vec<u8>) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let part = if line.is_empty() { self.without_ready_byte(part) } else { part };
            let (part, ended) = match part.strip_suffix(b"\n") {
                Some(part) => (part, true),
                None => (part, false),
            };
            for piece in part.chunks(LINE_BYTES_MAX) {
                if line.len() + piece.len() > LINE_BYTES_MAX {
                    self.tell(line);
                    line.clear();
                }
                line.extend_from_slice(piece);
            }
            if ended {
                self.tell(line);
                line.clear();
            }
        }
    }

    /// The first line that begins with the byte says that it is ready; the rest of it is a line.
    fn without_ready_byte<'a>(&mut self, part: &'a [u8]) -> &'a [u8] {
        match (&self.ready, part) {
            (Some((byte, _)), [first, rest @ ..]) if byte == first => {
                if let Some((_, waiter)) = self.ready.take() {
                    // The receiver may have given up.
                    let _ = waiter.send(());
                }
                rest
            }
            (Some(_) | None, _) => part,
        }
    }

    fn tell(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        if self.stream == LogStream::Stderr {
            self.error_tail.push(&text);
        }
        self.logs.line(self.stream, text.trim_end_matches('\r'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<String>>);

    impl Logs for Kept {
        fn line(&self, stream: LogStream, text: &str) {
            self.0.lock().unwrap().push(format!("{}: {text}", stream.as_str()));
        }
    }

    fn output(stream: LogStream) -> (Output, Arc<Kept>) {
        let kept = Arc::new(Kept::default());
        let logs: Arc<dyn Logs> = Arc::clone(&kept) as _;
        (Output { stream, logs, error_tail: ErrorTail::default(), ready: None }, kept)
    }

    #[tokio::test]
    async fn log_lines_are_passed_on_as_written() {
        let (output, kept) = output(LogStream::Stderr);
        let tail = output.error_tail.clone();
        let text = "one\r\ntwo\n\nüber\nno end".as_bytes().to_vec();
        output.drain(Some(Box::new(std::io::Cursor::new(text)))).await;
        let expected = ["stderr: one", "stderr: two", "stderr: ", "stderr: über", "stderr: no end"];
        assert_eq!(*kept.0.lock().unwrap(), expected);
        assert_eq!(tail.get(), "one\ntwo\n\nüber\nno end");
    }

    #[tokio::test]
    async fn a_log_line_without_end_is_cut() {
        let (output, kept) = output(LogStream::Stdout);
        let bytes = vec![b'x'; 3 * LINE_BYTES_MAX + 5];
        output.drain(Some(Box::new(std::io::Cursor::new(bytes)))).await;
        let kept = kept.0.lock().unwrap();
        assert!(kept.iter().all(|line| line.len() <= LINE_BYTES_MAX + 8));
        let logged: usize = kept.iter().map(|line| line.len() - "stdout: ".len()).sum();
        assert_eq!(logged, 3 * LINE_BYTES_MAX + 5);
    }

    #[test]
    fn the_tail_of_standard_error_is_its_last_lines_within_bounds() {
        let tail = ErrorTail::default();
        assert_eq!(tail.get(), "");
        for line in 0..100 {
            tail.push(&format!("line {line}\r"));
        }
        let got = tail.get();
        assert_eq!((got.lines().next(), got.lines().last()), (Some("line 60"), Some("line 99")));
        assert_eq!(got.lines().count(), TAIL_LINES_MAX);
        for _ in 0..3 {
            tail.push(&"ü".repeat(TAIL_LINE_BYTES_MAX));
            tail.push("");
        }
        let got = tail.get();
        assert!(got.len() <= TAIL_BYTES_MAX && got.ends_with('ü'), "{}", got.len());
        assert_eq!(got.lines().filter(|line| line.len() == TAIL_LINE_BYTES_MAX).count(), 3);
    }

    #[test]
    fn the_ready_byte_is_removed_once() {
        let (mut output, kept) = output(LogStream::Stdout);
        let (waiter, mut ready) = oneshot::channel();
        output.ready = Some((b'R', waiter));
        let mut line = Vec::new();
        output.take(b"a warning: R\n", &mut line);
        assert!(ready.try_recv().is_err());
        output.take(b"R", &mut line);
        assert!(ready.try_recv().is_ok());
        output.take(b"Really\n", &mut line);
        assert_eq!(*kept.0.lock().unwrap(), ["stdout: a warning: R", "stdout: Really"]);
    }
}
