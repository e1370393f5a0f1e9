//! The two outputs of a program, as lines for its logs. It must never delay the program: a log may
//! not wait, and lines that never end are cut.

use std::sync::{Arc, Mutex, PoisonError};

use runtime::ByteReader;
use tokio::io::AsyncReadExt as _;
use tokio::sync::oneshot;

/// A longer line is logged in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The most bytes kept of the last line of standard error.
const LAST_ERROR_LINE_BYTES_MAX: usize = 1024;

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

/// The last line that a program wrote to standard error.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastErrorLine(Arc<Mutex<String>>);

impl LastErrorLine {
    pub(crate) fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, line: &str) {
        let line = line.trim();
        if !line.is_empty() {
            let mut end = line.len().min(LAST_ERROR_LINE_BYTES_MAX);
            while !line.is_char_boundary(end) {
                end -= 1;
            }
            line[..end].clone_into(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Lines of one output.
pub(crate) struct Output {
    pub stream: LogStream,
    pub logs: Arc<dyn Logs>,
    pub last_error_line: LastErrorLine,
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
            self.last_error_line.set(&text);
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
        (Output { stream, logs, last_error_line: LastErrorLine::default(), ready: None }, kept)
    }

    #[tokio::test]
    async fn log_lines_are_passed_on_as_written() {
        let (output, kept) = output(LogStream::Stderr);
        let last_error_line = output.last_error_line.clone();
        let text = "one\r\ntwo\n\nüber\nno end".as_bytes().to_vec();
        output.drain(Some(Box::new(std::io::Cursor::new(text)))).await;
        let expected = ["stderr: one", "stderr: two", "stderr: ", "stderr: über", "stderr: no end"];
        assert_eq!(*kept.0.lock().unwrap(), expected);
        assert_eq!(last_error_line.get(), "no end");
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
