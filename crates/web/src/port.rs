//! Ports inside a sandbox: connecting to one, and proxying a request to the server behind it.

use axum::extract::Request;
use axum::response::Response;
use engine::{Caller, Duplex, Use};
use http::{Extensions, StatusCode, Version};
use model::ErrorCode;

use crate::app::App;
use crate::boxed;
use crate::proxy::{self, ProxyPath};
use crate::proxy_exchange::exchange;
use crate::refused::Refused;
use crate::subprotocol;
use crate::tunnel::client_of;

/// Connects to a port inside.
#[boxed]
pub async fn dial(used: &Use, port: u16) -> Result<Box<dyn Duplex>, Refused> {
    used.dial(port).await.map_err(|refusal| {
        if refusal.code == ErrorCode::PathNotFound {
            let cause = format!("no program listens on port {port} in the sandbox");
            return Refused::new(ErrorCode::PortClosed, cause);
        }
        refusal.into()
    })
}

/// Proxies a request to the server that listens on a port inside.
#[boxed]
pub async fn pass_to(
    app: App,
    caller: Caller,
    used: Use,
    port: u16,
    path: ProxyPath,
    mut request: Request,
) -> Result<Response, Refused> {
    let client = client_of(&mut request);
    let (mut head, body) = request.into_parts();
    let had_key = proxy::inward(&mut head.headers, &path.prefix, port);
    head.uri = path.inside.into();
    head.version = Version::HTTP_11;
    // The extensions of this server must not reach the sandbox.
    head.extensions = Extensions::new();
    let connection = dial(&used, port).await?;
    let asked = Request::from_parts(head, body);
    let mut response = exchange(app, caller, used, connection, asked, client).await?;
    proxy::outward(response.headers_mut(), &path.prefix, port);
    if had_key && response.status() == StatusCode::SWITCHING_PROTOCOLS {
        subprotocol::choose(response.headers_mut());
    }
    Ok(response)
}
