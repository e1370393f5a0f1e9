//! A WebSocket to a route of the server, over the connections of the client.

use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::call::Call;
use crate::error::ClientError;
use crate::query::Target;
use crate::transport::Client;

/// A WebSocket.
pub(crate) type Socket = WebSocketStream<TokioIo<Upgraded>>;

impl Client {
    /// Opens a WebSocket. It may take `extra` longer than other requests.
    pub(crate) async fn web_socket(
        &self,
        target: Target,
        extra: Duration,
    ) -> Result<Socket, ClientError> {
        let key = HeaderValue::try_from(generate_key());
        let key = key.map_err(|_| ClientError::invalid("cannot make a key for a WebSocket"))?;
        let mut call = Call::get(target)
            .header(CONNECTION, HeaderValue::from_static("upgrade"))
            .header(UPGRADE, HeaderValue::from_static("websocket"))
            .header(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"))
            .header(SEC_WEBSOCKET_KEY, key)
            .may_take(extra);
        let upgraded = TokioIo::new(self.upgrade(&mut call).await?);
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await)
    }
}
