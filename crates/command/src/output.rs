//! What commands print: results to stdout, messages to stderr, colours only on a terminal. A closed
//! pipe is not a failure.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::plain_text::plain_lines;

/// When to use colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On terminals, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How a piece of text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// Good.
    Good,
    /// Worth a look.
    Middling,
    /// Wrong.
    Bad,
    /// A heading.
    Strong,
    /// Of little importance.
    Faint,
}

impl Paint {
    const fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Middling => "33",
            Self::Bad => "31",
            Self::Strong => "1",
            Self::Faint => "2",
        }
    }
}

/// A stream for people, and whether it is coloured.
struct Stream {
    colored: bool,
    to: Mutex<Box<dyn Write + Send>>,
}

impl Stream {
    fn write(&self, bytes: &[u8]) {
        // A writer is consistent after every call, so a panic elsewhere did not damage it.
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = to.write_all(bytes).and_then(|()| to.flush());
    }

    fn paint(&self, paint: Paint, text: &str) -> String {
        if self.colored {
            format!("\u{1b}[{}m{text}\u{1b}[0m", paint.code())
        } else {
            text.to_owned()
        }
    }
}

/// Our two outputs.
pub struct Output {
    stdout: Stream,
    stderr: Stream,
}

impl Output {
    /// Stdout and stderr of this process.
    pub fn new(color: Color) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colored = |is_terminal: bool| match color {
            Color::Auto => is_terminal && !plain,
            Color::Always => true,
            Color::Never => false,
        };
        let (stdout, stderr) = (io::stdout(), io::stderr());
        Self {
            stdout: Stream {
                colored: colored(stdout.is_terminal()),
                to: Mutex::new(Box::new(stdout)),
            },
            stderr: Stream {
                colored: colored(stderr.is_terminal()),
                to: Mutex::new(Box::new(stderr)),
            },
        }
    }

    /// Text for stdout, coloured if stdout is.
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        self.stdout.paint(paint, text)
    }

    /// Writes a result.
    pub fn say(&self, text: &str) {
        self.stdout.write(format!("{text}\n").as_bytes());
    }

    /// Writes a result for scripts.
    pub fn say_json(&self, value: &Value) {
        self.say(&format!("{value:#}"));
    }

    /// Writes a value as JSON, as a result for scripts.
    pub fn say_value(&self, value: &impl Serialize) -> Result<(), Failure> {
        let value = serde_json::to_value(value)
            .map_err(|error| Failure::new("cannot write the result", error))?;
        self.say_json(&value);
        Ok(())
    }

    /// Writes the bytes of a result unchanged.
    pub fn say_bytes(&self, bytes: &[u8]) {
        self.stdout.write(bytes);
    }

    /// Writes an error message.
    pub fn complain(&self, text: &str) {
        let name = self.stderr.paint(Paint::Bad, "shoal:");
        // A cause may name files and programs of a sandbox.
        self.stderr.write(format!("{name} {}\n", plain_lines(text)).as_bytes());
    }

    /// Writes a note: what happened to a program, or to the command.
    pub fn note(&self, text: &str) {
        let name = self.stderr.paint(Paint::Strong, "shoal:");
        self.stderr.write(format!("{name} {text}\n").as_bytes());
    }

    /// Writes a note for a person: nothing if stderr is not a terminal.
    pub fn remark(&self, text: &str) {
        if io::stderr().is_terminal() {
            self.note(text);
        }
    }

    /// Shows progress in one line, over the last one. An empty text clears the line.
    pub fn progress(&self, text: &str) {
        if io::stderr().is_terminal() {
            self.stderr.write(format!("\r\u{1b}[K{text}").as_bytes());
        }
    }

    /// Writes a remedy.
    pub fn hint(&self, text: &str) {
        let word = self.stderr.paint(Paint::Faint, "  try:");
        self.stderr.write(format!("{word} {text}\n").as_bytes());
    }
}
