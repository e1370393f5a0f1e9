//! Messages of the Model Context Protocol, passed on as they are. What is in them is the business of
//! those who speak it.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use model::{SandboxId, SessionId};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::query::Target;
use crate::transport::Client;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BOTH: &str = "application/json, text/event-stream";
/// How long a tool may take: as long as the longest program.
const TOOL_PATIENCE: Duration = Duration::from_hours(24);

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Where the protocol is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpPlace {
    /// The tools of the server.
    Server,
    /// Those of one sandbox.
    Sandbox(SandboxId),
    /// Those of whatever sandbox a session has.
    Session(SessionId),
}

/// A message, and what is said of it in headers.
#[derive(Debug, Clone, Default)]
pub struct McpMessage {
    /// The message, as JSON.
    pub body: Bytes,
    /// The version of the protocol that was agreed on.
    pub version: Option<String>,
    /// Its method.
    pub method: Option<String>,
    /// The name of the tool that it calls.
    pub name: Option<String>,
}

impl Client {
    /// Passes on a message; the answer is none where none is due.
    #[boxed]
    pub async fn pass_on(
        &self,
        place: McpPlace,
        message: McpMessage,
    ) -> Result<Option<Bytes>, ClientError> {
        let target = match place {
            McpPlace::Server => Target::new("/mcp"),
            McpPlace::Sandbox(id) => Target::new("/v1/sandboxes").part(&id.to_string()).part("mcp"),
            McpPlace::Session(id) => Target::new("/v1/sessions").part(&id.to_string()).part("mcp"),
        };
        let mut call = Call::post(target).bytes(message.body).may_take(TOOL_PATIENCE);
        call = call.accept(BOTH).header(CONTENT_TYPE, JSON);
        for (header, text) in
            [(VERSION, message.version), (METHOD, message.method), (NAME, message.name)]
        {
            if let Some(value) = text.and_then(|text| written(&text)) {
                call = call.header(header, value);
            }
        }
        let answer = self.bytes(call).await?;
        Ok((!answer.is_empty()).then_some(answer))
    }
}

/// A text as a header takes it, in the protocol's own way where it has other letters.
fn written(text: &str) -> Option<HeaderValue> {
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.trim() == text;
    if is_plain {
        return HeaderValue::from_str(text).ok();
    }
    HeaderValue::try_from(format!("=?base64?{}?=", wire::to_base64(text.as_bytes()))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_so_that_a_header_takes_them() {
        for (text, expected) in
            [("exec", "exec"), ("grün", "=?base64?Z3LDvG4=?="), (" a", "=?base64?IGE=?=")]
        {
            assert_eq!(written(text).unwrap(), expected);
        }
    }
}
