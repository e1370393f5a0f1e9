//! Our terminal: its size, and raw mode, in which every key goes to the program. Its old mode is
//! always restored.

use std::io::{stdin, stdout};

use runtime::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The size if we have no terminal.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// The size of our terminal.
pub(crate) fn size() -> TerminalSize {
    let known = tcgetwinsize(stdout()).or_else(|_| tcgetwinsize(stdin())).ok();
    let known = known.filter(|size| size.ws_row > 0 && size.ws_col > 0);
    known.map_or(DEFAULT_SIZE, |size| TerminalSize { rows: size.ws_row, columns: size.ws_col })
}

/// The terminal in raw mode, until this is dropped.
pub(crate) struct Raw {
    before: Option<Termios>,
}

impl Raw {
    /// Switches to raw mode, if there is a terminal at all.
    pub(crate) fn enter() -> Self {
        let before = tcgetattr(stdin()).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
        }
        Self { before }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}
