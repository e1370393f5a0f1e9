//! The events that Ash sends before a message of the agent's SDK, made from that message. Messages
//! come from inside the sandbox: their words become names of events only where they can do no harm.

use serde_json::{Value, json};

/// Events that have a meaning of their own in the stream: no message may call itself so.
const OURS: &[&str] = &["session_start", "session_end", "message", "error", "done"];
const NAME_MAX: usize = 64;

/// A name of an event and what it carries.
pub(super) type Named = (String, Value);

/// The events that are sent before a message.
pub(super) fn granular(message: &Value) -> Vec<Named> {
    match message["type"].as_str() {
        Some("stream_event") => delta(&message["event"]).into_iter().collect(),
        Some("assistant") => blocks(message).filter_map(block).collect(),
        Some("user") if !message["tool_use_result"].is_null() => vec![tool_result(message)],
        Some("result") => vec![("turn_complete".to_owned(), turn_complete(message))],
        Some(_) | None => Vec::new(),
    }
}

/// The parts of a message.
pub(super) fn blocks(message: &Value) -> impl Iterator<Item = &Value> {
    message["message"]["content"].as_array().into_iter().flatten()
}

fn delta(event: &Value) -> Option<Named> {
    if event["type"] != "content_block_delta" {
        return None;
    }
    let delta = &event["delta"];
    match delta["type"].as_str()? {
        "text_delta" => Some(("text_delta".to_owned(), json!({"delta": delta["text"]}))),
        "thinking_delta" => {
            Some(("thinking_delta".to_owned(), json!({"delta": delta["thinking"]})))
        }
        other => named(other, delta),
    }
}

fn block(block: &Value) -> Option<Named> {
    match block["type"].as_str()? {
        "text" => None,
        "tool_use" => {
            let (id, name, input) = (&block["id"], &block["name"], &block["input"]);
            Some(("tool_use".to_owned(), json!({"id": id, "name": name, "input": input})))
        }
        "thinking" => Some(("thinking_delta".to_owned(), json!({"delta": block["thinking"]}))),
        other => named(other, block),
    }
}

/// An event with a name from inside.
fn named(name: &str, data: &Value) -> Option<Named> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let is_plain = !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(fits);
    (is_plain && !OURS.contains(&name)).then(|| (name.to_owned(), data.clone()))
}

fn tool_result(message: &Value) -> Named {
    let (result, block) = (&message["tool_use_result"], tool_result_block(message));
    let content = match result.get("stdout") {
        Some(stdout) if !stdout.is_null() => stdout,
        Some(_) | None => &block["content"],
    };
    let is_error = block["is_error"].as_bool().unwrap_or(false);
    let id = &block["tool_use_id"];
    let data = json!({"tool_use_id": id, "content": content, "is_error": is_error});
    ("tool_result".to_owned(), data)
}

/// The part of a message that has the result of a tool.
pub(super) fn tool_result_block(message: &Value) -> &Value {
    const NOTHING: &Value = &Value::Null;
    blocks(message).find(|block| block["type"] == "tool_result").unwrap_or(NOTHING)
}

pub(super) fn turn_complete(message: &Value) -> Value {
    json!({"numTurns": message["num_turns"], "result": message["result"]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, data: Value) -> Vec<Named> {
        vec![(name.to_owned(), data)]
    }

    #[test]
    fn message_of_each_type_has_its_events() {
        let streamed = |delta: Value| {
            let event = json!({"type": "content_block_delta", "index": 0, "delta": delta});
            json!({"type": "stream_event", "event": event})
        };
        let said = |blocks: Value| json!({"type": "assistant", "message": {"content": blocks}});
        let tool_block = json!({"type": "tool_result", "tool_use_id": "t1", "content": "c"});
        let failed = json!({
            "type": "tool_result", "tool_use_id": "t1", "content": "c", "is_error": true,
        });
        let table = [
            (
                streamed(json!({"type": "text_delta", "text": "Hi"})),
                one("text_delta", json!({"delta": "Hi"})),
            ),
            (
                streamed(json!({"type": "thinking_delta", "thinking": "Hm"})),
                one("thinking_delta", json!({"delta": "Hm"})),
            ),
            (
                streamed(json!({"type": "input_json_delta", "partial_json": "{"})),
                one("input_json_delta", json!({"type": "input_json_delta", "partial_json": "{"})),
            ),
            (json!({"type": "stream_event", "event": {"type": "message_start"}}), vec![]),
            (said(json!([{"type": "text", "text": "Hi"}])), vec![]),
            (
                said(json!([{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"a": 1}}])),
                one("tool_use", json!({"id": "t1", "name": "Bash", "input": {"a": 1}})),
            ),
            (
                said(json!([{"type": "thinking", "thinking": "Hm", "signature": "s"}])),
                one("thinking_delta", json!({"delta": "Hm"})),
            ),
            (
                said(json!([{"type": "server_tool_use", "id": "s"}])),
                one("server_tool_use", json!({"type": "server_tool_use", "id": "s"})),
            ),
            (
                json!({
                    "type": "user", "message": {"content": [tool_block]},
                    "tool_use_result": {"stdout": "out", "stderr": ""},
                }),
                one(
                    "tool_result",
                    json!({"tool_use_id": "t1", "content": "out", "is_error": false}),
                ),
            ),
            (
                json!({
                    "type": "user", "message": {"content": [failed]}, "tool_use_result": "Error",
                }),
                one("tool_result", json!({"tool_use_id": "t1", "content": "c", "is_error": true})),
            ),
            (json!({"type": "user", "message": {"content": "again"}}), vec![]),
            (
                json!({"type": "result", "num_turns": 2, "result": "done"}),
                one("turn_complete", json!({"numTurns": 2, "result": "done"})),
            ),
            (json!({"type": "system", "subtype": "init"}), vec![]),
            (json!({"no": "type"}), vec![]),
            (json!([1]), vec![]),
        ];
        for (message, events) in table {
            assert_eq!(granular(&message), events, "{message}");
        }
    }

    #[test]
    fn message_types_from_the_sandbox_cannot_break_the_stream() {
        for name in ["done", "error", "message", "session_start", "", "a\nevent: done", "a b", "ä"]
        {
            let message = json!({"type": "assistant", "message": {"content": [{"type": name}]}});
            assert_eq!(granular(&message), [], "{name:?}");
        }
        let long = "x".repeat(NAME_MAX + 1);
        assert_eq!(named(&long, &Value::Null), None);
    }
}
