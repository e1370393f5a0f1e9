//! Interprets arbitrary bytes as lines of a harness, for fuzzing. No server contains this, and it
//! must never do more with a line than a turn does.

use model::{SessionId, TurnId};
use serde::de::IgnoredAny;

use crate::ash_bridge::{self, AshBridge};
use crate::jsonl::{self, Jsonl};
use crate::lines::{Lines, TooLong};
use crate::link::{HarnessEnd, HarnessEvent};
use crate::protocol::{Meaning, Protocol};

/// Short, so that lines that are too long are tried too.
const LINE_BYTES_MAX: usize = 1024;

/// The protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocols {
    /// Our own.
    Jsonl,
    /// Ash's.
    Bridge,
}

/// Interprets bytes in pieces of this size, gives a turn after each that has ended, and returns the
/// meaning of each line. A line `~` stands for silence, and a line that begins with `!` comes while
/// there is no turn, as do all while the end of an earlier turn is due. `@` is the id of the present
/// turn, `#` that of the one before.
///
/// # Panics
///
/// If something would be passed on that must not be.
pub fn interpret(language: Protocols, bytes: &[u8], piece_bytes: usize) -> Vec<String> {
    let mut protocol: Box<dyn Protocol> = match language {
        Protocols::Jsonl => Box::new(Jsonl::default()),
        Protocols::Bridge => Box::new(AshBridge::new(SessionId::NIL)),
    };
    let mut lines = Lines::new(LINE_BYTES_MAX);
    let (mut meanings, mut turn) = (Vec::new(), 1);
    begin(&mut *protocol, turn);
    for piece in bytes.chunks(piece_bytes.max(1)) {
        lines.push(piece);
        loop {
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(TooLong) => {
                    meanings.push("too long".to_owned());
                    return meanings;
                }
            };
            let Ok(line) = String::from_utf8(line) else {
                meanings.push("no text".to_owned());
                return meanings;
            };
            let id = |turn: u128| TurnId::from_u128(turn).to_string();
            let line = line.replace('@', &id(turn)).replace('#', &id(turn - 1));
            let was_settled = protocol.settle_timeout().is_none();
            let meaning = meant(&mut *protocol, language, &line);
            meanings.push(format!("{meaning:?}"));
            let has_ended = match meaning {
                Meaning::Nothing | Meaning::Event(_) | Meaning::Log(_) => false,
                Meaning::Ended(_) => true,
                Meaning::Broken(_) => return meanings,
            };
            if (has_ended || !was_settled) && protocol.settle_timeout().is_none() {
                turn += 1;
                begin(&mut *protocol, turn);
            }
        }
    }
    meanings
}

fn begin(protocol: &mut dyn Protocol, turn: u128) {
    let said = protocol.begin(TurnId::from_u128(turn), "\"x\"", None);
    assert!(said.is_ok_and(|line| !line.contains('\n')), "a turn is one line");
}

fn meant(protocol: &mut dyn Protocol, language: Protocols, line: &str) -> Meaning {
    let ready = match language {
        Protocols::Jsonl => jsonl::check_ready(line),
        Protocols::Bridge => ash_bridge::check_ready(line),
    };
    assert!(ready.is_err() || line.contains("ready"), "{line}");
    let _ = protocol.is_bound(line);
    let meaning = match line {
        "~" if protocol.silence_timeout().is_some() => protocol.on_silence(),
        "~" => Meaning::Nothing,
        line => match line.strip_prefix('!') {
            Some(line) => protocol.on_line_between_turns(line),
            None if protocol.settle_timeout().is_some() => protocol.on_line_between_turns(line),
            None => protocol.on_line(line),
        },
    };
    match &meaning {
        Meaning::Event(HarnessEvent::Message(data))
        | Meaning::Ended(HarnessEnd::Completed { result: Some(data) }) => {
            assert!(serde_json::from_str::<IgnoredAny>(data).is_ok(), "no JSON: {data}");
            assert!(!data.contains(['\n', '\r']), "not one line: {data}");
        }
        Meaning::Ended(HarnessEnd::Failed { message, .. }) => assert!(message.len() <= 4 * 4096),
        Meaning::Ended(HarnessEnd::Completed { result: None } | HarnessEnd::SandboxGone)
        | Meaning::Event(HarnessEvent::Output { .. } | HarnessEvent::Ended(_))
        | Meaning::Nothing
        | Meaning::Log(_)
        | Meaning::Broken(_) => {}
    }
    meaning
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_no_difference_and_turns_follow_each_other() {
        let said = concat!(
            r#"{"type":"event","id":"@","data":{"a":1}}"#,
            "\n",
            r#"{"type":"result","id":"@"}"#,
            "\n",
            r#"{"type":"event","id":"#,
            "\"#\"",
            r#","data":{}}"#,
            "\n!{\"type\":\"bound\"}\nx\nnever\n",
        );
        let whole = interpret(Protocols::Jsonl, said.as_bytes(), said.len());
        assert_eq!(whole.len(), 5);
        assert!(whole[1].starts_with("Ended") && whole[4].starts_with("Broken"), "{whole:?}");
        assert_eq!(whole[2..4], ["Nothing", "Nothing"]);
        for piece_bytes in 1..20 {
            assert_eq!(interpret(Protocols::Jsonl, said.as_bytes(), piece_bytes), whole);
        }
        let said = "{\"ev\":\"error\",\"error\":\"e\"}\n~\n{\"ev\":\"done\"}\n{\"ev\":\"log\",\"text\":\"t\"}\n";
        let whole = interpret(Protocols::Bridge, said.as_bytes(), 7);
        assert!(whole[1].starts_with("Ended") && whole[3].starts_with("Log"), "{whole:?}");
        assert_eq!(whole[2], "Nothing", "a late end does not end the next turn");
    }
}
