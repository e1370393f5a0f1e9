//! Checks of commands, arguments, variables, input and paths that clients send for a sandbox. The
//! same bounds hold in every dialect.

use std::collections::BTreeMap;

use engine::Command;
use model::ErrorCode;

use crate::refused::Refused;

/// Arguments that one program may have.
pub const ARGUMENTS_MAX: usize = 4096;
/// Bytes of all arguments, or of all variables, together.
pub const ARGUMENT_BYTES_MAX: usize = 128 * 1024;
/// Bytes of input that come with a request.
pub const STDIN_BYTES_MAX: usize = 16 << 20;
const PATH_BYTES_MAX: usize = 4096;

/// The command, if exactly one of `command` and `argv` is given.
pub fn checked_command(
    command: Option<String>,
    argv: Option<Vec<String>>,
) -> Result<Command, Refused> {
    match (command, argv) {
        (Some(line), None) => Ok(Command::Shell(checked("command", line)?)),
        (None, Some(argv)) => Ok(Command::Argv(checked_argv(argv)?)),
        (Some(_), Some(_)) => {
            Err(Refused::invalid("argv", "only one of command and argv may be given"))
        }
        (None, None) => Err(Refused::invalid("command", "one of command and argv must be given")),
    }
}

/// The input of a program, if it was given in at most one way.
pub fn checked_stdin(
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Vec<u8>>, Refused> {
    let stdin = match (text, base64) {
        (None, None) => None,
        (Some(text), None) => Some(text.into_bytes()),
        (None, Some(text)) => {
            let wrong = |error: wire::Base64Error| {
                Refused::invalid("stdin_base64", format!("stdin_base64: {error}"))
            };
            Some(wire::from_base64(&text).map_err(wrong)?)
        }
        (Some(_), Some(_)) => {
            let cause = "only one of stdin and stdin_base64 may be given";
            return Err(Refused::invalid("stdin_base64", cause));
        }
    };
    if stdin.as_ref().is_some_and(|bytes| bytes.len() > STDIN_BYTES_MAX) {
        let cause = format!("the input has more than {STDIN_BYTES_MAX} bytes");
        return Err(Refused::new(ErrorCode::TooLarge, cause));
    }
    Ok(stdin)
}

/// A text that is not empty, has no zero byte and is not too long.
pub fn checked(field: &'static str, text: String) -> Result<String, Refused> {
    if text.contains('\0') {
        return Err(Refused::invalid(field, format!("{field}: has a zero byte in it")));
    }
    if text.is_empty() {
        return Err(Refused::invalid(field, format!("{field}: is empty")));
    }
    if text.len() > ARGUMENT_BYTES_MAX {
        let cause = format!("{field}: has more than {ARGUMENT_BYTES_MAX} bytes");
        return Err(Refused::invalid(field, cause));
    }
    Ok(text)
}

/// Arguments that a program can be started with.
pub fn checked_argv(argv: Vec<String>) -> Result<Vec<String>, Refused> {
    let wrong = |cause: String| Err(Refused::invalid("argv", format!("argv: {cause}")));
    match argv.first() {
        None => return wrong("is empty".to_owned()),
        Some(program) if program.is_empty() => {
            return wrong("the name of the program is empty".to_owned());
        }
        Some(_) => {}
    }
    if argv.len() > ARGUMENTS_MAX {
        return wrong(format!("has more than {ARGUMENTS_MAX} arguments"));
    }
    let bytes: usize = argv.iter().map(|argument| argument.len() + 1).sum();
    if bytes > ARGUMENT_BYTES_MAX {
        return wrong(format!("has more than {ARGUMENT_BYTES_MAX} bytes"));
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        return wrong("an argument has a zero byte in it".to_owned());
    }
    Ok(argv)
}

/// Variables that a program can be started with.
pub fn checked_env(env: BTreeMap<String, String>) -> Result<Vec<(String, String)>, Refused> {
    let wrong = |cause: String| Err(Refused::invalid("env", format!("env: {cause}")));
    let mut bytes = 0;
    for (name, value) in &env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return wrong("a name is empty, or has a = or a zero byte in it".to_owned());
        }
        if value.contains('\0') {
            return wrong(format!("the value of {name:?} has a zero byte in it"));
        }
        bytes += name.len() + value.len() + 2;
    }
    if bytes > ARGUMENT_BYTES_MAX {
        return wrong(format!("has more than {ARGUMENT_BYTES_MAX} bytes"));
    }
    Ok(env.into_iter().collect())
}

/// A path that can be one inside a sandbox.
pub fn checked_path(field: &'static str, path: String) -> Result<String, Refused> {
    let wrong = |cause: &str| Err(Refused::invalid(field, format!("{field}: {cause}")));
    match path.as_str() {
        "" => wrong("is empty"),
        text if text.contains('\0') => wrong("has a zero byte in it"),
        text if text.len() > PATH_BYTES_MAX => wrong("has more than 4096 bytes"),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_paths_are_refused() {
        for (path, fits) in [
            ("/workspace/a", true),
            ("a", true),
            ("", false),
            ("a\0b", false),
            (&"x".repeat(PATH_BYTES_MAX), true),
            (&"x".repeat(PATH_BYTES_MAX + 1), false),
        ] {
            assert_eq!(checked_path("path", path.to_owned()).is_ok(), fits, "{}", path.len());
        }
    }
}
