//! Forwards messages of the Model Context Protocol unchanged. It does not read their contents.

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

/// Whose tools are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpTarget {
    /// The tools of the server.
    Server,
    /// The tools of one sandbox.
    Sandbox(SandboxId),
    /// The tools of the sandbox of a session.
    Session(SessionId),
}

/// A message, and the contents of its headers.
#[derive(Debug, Clone, Default)]
pub struct McpMessage {
    /// The message, as JSON.
    pub body: Bytes,
    /// The negotiated version of the protocol.
    pub version: Option<String>,
    /// Its method.
    pub method: Option<String>,
    /// The name of the tool that it calls.
    pub name: Option<String>,
}

impl Client {
    /// Forwards a message. Gives its answer, if it gets one.
    #[boxed]
    pub async fn forward_mcp(
        &self,
        place: McpTarget,
        message: McpMessage,
    ) -> Result<Option<Bytes>, ClientError> {
        let target = match place {
            McpTarget::Server => Target::new("/mcp"),
            McpTarget::Sandbox(id) => {
                Target::new("/v1/sandboxes").part(&id.to_string()).part("mcp")
            }
            McpTarget::Session(id) => Target::new("/v1/sessions").part(&id.to_string()).part("mcp"),
        };
        let mut call = Call::post(target).bytes(message.body).may_take(TOOL_PATIENCE);
        call = call.accept(BOTH).header(CONTENT_TYPE, JSON);
        for (header, text) in
            [(VERSION, message.version), (METHOD, message.method), (NAME, message.name)]
        {
            if let Some(value) = text.and_then(|text| header_value(&text)) {
                call = call.header(header, value);
            }
        }
        let answer = self.bytes(call).await?;
        Ok((!answer.is_empty()).then_some(answer))
    }
}

/// A text as a header value, encoded as the protocol says if it is not plain ASCII.
fn header_value(text: &str) -> Option<HeaderValue> {
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
    fn mcp_header_values_are_encoded() {
        for (text, expected) in
            [("exec", "exec"), ("grün", "=?base64?Z3LDvG4=?="), (" a", "=?base64?IGE=?=")]
        {
            assert_eq!(header_value(text).unwrap(), expected);
        }
    }
}
