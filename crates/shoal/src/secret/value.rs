//! Where the value of a secret comes from: a file, standard input, or a person at the terminal, who
//! sees nothing of it. The terminal is always restored.

use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Read, stdin};
use std::path::Path;

use model::SecretName;
use model::secret::SECRET_BYTES_MAX;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use wire::SecretRequest;

use crate::failure::Failure;
use crate::output::Output;

/// What ctrl-C types while the terminal sends no signals.
const INTERRUPTED: char = '\u{3}';

/// Reads the value.
pub(super) fn read(
    name: &SecretName,
    file: Option<&Path>,
    output: &Output,
) -> Result<SecretRequest, Failure> {
    let value = match file {
        Some(path) => {
            let what = || format!("cannot use {}", path.display());
            let opened = File::open(path).map_err(|error| Failure::new(what(), error).usage())?;
            all(opened).map_err(|error| Failure::new(what(), error).usage())?
        }
        None if stdin().is_terminal() => ask(name, output)?,
        None => without_newline(all(stdin()).map_err(unreadable)?),
    };
    let value = model::SecretValue::new(value);
    let value = value.map_err(|problem| Failure::new("cannot use the value", problem).usage())?;
    Ok(SecretRequest { value: value.expose().to_owned() })
}

fn unreadable(error: io::Error) -> Failure {
    Failure::new("cannot read the value", error).usage()
}

/// Everything, or a little more than a secret may have.
fn all(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    // One byte for a newline, and one that is too many.
    source.take(SECRET_BYTES_MAX as u64 + 2).read_to_string(&mut text)?;
    Ok(text)
}

/// Without exactly one newline at the end.
fn without_newline(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// A line that a person types, unseen.
fn ask(name: &SecretName, output: &Output) -> Result<String, Failure> {
    output.remark(&format!("value of {name} (not shown; end with Enter):"));
    let mut line = String::new();
    let silent = Silent::enter();
    let read = stdin().lock().take(SECRET_BYTES_MAX as u64 + 2).read_line(&mut line);
    drop(silent);
    read.map_err(unreadable)?;
    if line.contains(INTERRUPTED) {
        return Err(Failure::new("cannot read the value", "it was interrupted").usage());
    }
    Ok(without_newline(line))
}

/// The terminal without an echo, until this is dropped. It sends no signals meanwhile, which would
/// end this program and leave it so.
struct Silent {
    before: Option<Termios>,
}

impl Silent {
    fn enter() -> Self {
        let before = tcgetattr(stdin()).ok();
        if let Some(before) = &before {
            let mut silent = before.clone();
            silent.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
            let _ = tcsetattr(stdin(), OptionalActions::Flush, &silent);
        }
        Self { before }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(stdin(), OptionalActions::Flush, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_a_secret_loses_exactly_one_final_newline() {
        for (text, value) in [("a", "a"), ("a\n", "a"), ("a\n\n", "a\n"), ("\na", "\na"), ("", "")]
        {
            assert_eq!(without_newline(text.to_owned()), value);
        }
        assert_eq!(without_newline("a\r\n".to_owned()), "a\r");
    }
}
