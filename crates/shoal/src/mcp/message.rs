//! Parses what the relay needs of a message: the id of its answer, the contents of its headers, and
//! whether it cancels another message.

use client::{ClientError, McpMessage};
use serde_json::{Value, json};

/// The field with the version of the protocol in a message.
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const NOT_JSON: i64 = -32700;
/// Our own error code: the server gave no answer.
const NO_ANSWER: i64 = -32000;

/// A line of our input.
#[derive(Debug, PartialEq)]
pub(super) enum InputLine {
    /// A message to forward.
    Message(Message),
    /// The client cancels the call with this id.
    Cancelled(Value),
    /// Not JSON.
    Unreadable(String),
}

/// A message to forward.
#[derive(Debug, PartialEq)]
pub(super) struct Message {
    /// The id of the answer; none if it gets none.
    pub(super) id: Option<Value>,
    pub(super) method: Option<String>,
    name: Option<String>,
    version: Option<String>,
    body: String,
}

impl InputLine {
    pub(super) fn read(text: &str) -> Self {
        let value: Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => return Self::Unreadable(error.to_string()),
        };
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let (method, params) = (word(&value["method"]), &value["params"]);
        if method.as_deref() == Some("notifications/cancelled") {
            return Self::Cancelled(params["requestId"].clone());
        }
        // An answer has an id, too, but gets no answer.
        let id = value.get("id").filter(|id| !id.is_null() && method.is_some()).cloned();
        Self::Message(Message {
            id,
            name: word(&params["name"]).or_else(|| word(&params["uri"])),
            version: word(&params["_meta"][VERSION]),
            method,
            body: text.to_owned(),
        })
    }
}

impl Message {
    /// The message as it is sent, with the negotiated version.
    pub(super) fn sent(self, agreed: Option<&str>) -> McpMessage {
        McpMessage {
            body: self.body.into(),
            version: self.version.or_else(|| agreed.map(str::to_owned)),
            method: self.method,
            name: self.name,
        }
    }
}

/// The version that the answer to `initialize` selects.
pub(super) fn agreed(answer: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(answer).ok()?;
    value["result"]["protocolVersion"].as_str().map(str::to_owned)
}

/// The answer to a line that cannot be read.
pub(super) fn unreadable(cause: &str) -> Value {
    answer(&Value::Null, NOT_JSON, cause, &Value::Null)
}

/// The error for a message that the server did not answer.
pub(super) fn unanswered(id: &Value, error: &ClientError) -> Value {
    let problem = error.problem();
    let message = match problem {
        Some(problem) => format!("{}: {}; {}", problem.code, problem.detail, problem.remedy),
        None => error.to_string(),
    };
    answer(id, NO_ANSWER, &message, &json!(problem))
}

fn answer(id: &Value, code: i64, message: &str, data: &Value) -> Value {
    let mut error = json!({"code": code, "message": message});
    if !data.is_null() {
        error["data"] = data.clone();
    }
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcp_lines_are_parsed() {
        let read = |value: Value| InputLine::read(&value.to_string());
        let of = |line: InputLine| match line {
            InputLine::Message(message) => {
                (message.id, message.method, message.name, message.version)
            }
            InputLine::Cancelled(_) | InputLine::Unreadable(_) => panic!("{line:?}"),
        };
        let word = |text: &str| Some(text.to_owned());
        for (value, expected) in [
            (
                json!({"id": 1, "method": "tools/call", "params": {"name": "exec"}}),
                (Some(json!(1)), word("tools/call"), word("exec"), None),
            ),
            (
                json!({"id": "a", "method": "ping", "params": {"_meta": {VERSION: "2026-07-28"}}}),
                (Some(json!("a")), word("ping"), None, word("2026-07-28")),
            ),
            (json!({"method": "notifications/x"}), (None, word("notifications/x"), None, None)),
            (json!({"id": 3, "result": {}}), (None, None, None, None)),
            (json!([1]), (None, None, None, None)),
        ] {
            assert_eq!(of(read(value.clone())), expected, "{value}");
        }
        let off = json!({"method": "notifications/cancelled", "params": {"requestId": 4}});
        assert_eq!(read(off), InputLine::Cancelled(json!(4)));
        assert!(matches!(InputLine::read("{"), InputLine::Unreadable(_)));
    }

    #[test]
    fn mcp_message_without_an_answer_gets_the_cause() {
        let cut = ClientError::Cut { cause: "gone".to_owned() };
        let answer = unanswered(&json!(5), &cut);
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(5), &json!(-32000)));
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("gone")));
        assert_eq!(agreed(br#"{"result":{"protocolVersion":"1"}}"#).as_deref(), Some("1"));
        assert_eq!(agreed(b"x"), None);
    }
}
