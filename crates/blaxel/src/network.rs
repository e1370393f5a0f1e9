//! The sockets of a process and of what descends from it.

use std::collections::BTreeSet;

use axum::response::Response;
use engine::UseKind;
use serde_json::json;

use super::answer;
use super::errors::BlaxelError;
use super::target::Target;

pub(super) async fn sockets(target: &Target, pid: &str) -> Result<Response, BlaxelError> {
    let Ok(pid) = pid.parse::<u32>() else { return Err(BlaxelError::bad("invalid PID")) };
    let used = target.begin(UseKind::Port).await?;
    let mut seen = BTreeSet::new();
    let sockets = used.sockets(pid).await?;
    // One for each port, as in Blaxel.
    let ports = sockets.iter().filter(|socket| seen.insert(socket.local_port)).map(|socket| {
        json!({
            "pid": socket.pid,
            "protocol": socket.protocol,
            "localAddr": socket.local_address,
            "localPort": socket.local_port,
            "remoteAddr": socket.remote_address,
            "remotePort": socket.remote_port,
            "state": socket.state,
            "processName": socket.program,
        })
    });
    answer::ok(&json!({"pid": pid, "ports": ports.collect::<Vec<_>>()}))
}
