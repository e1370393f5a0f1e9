//! Ports and sockets inside a sandbox.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::stage::{PATIENCE, eventually, said};
use super::{CaseResult, Stage, code_of};
use crate::contract::Sandbox;
use crate::error::RuntimeErrorCode;
use crate::exec::{ExecSpec, Process};

const PORT: u16 = 18_080;

async fn serve(stage: &Stage, sandbox: &Arc<dyn Sandbox>) -> Process {
    let spec = ExecSpec::new(stage.subject.echo_server(PORT));
    let process = sandbox.inside().exec(spec).await.expect("started");
    eventually("it listens", || async {
        let ports = sandbox.inside().ports().await.expect("listed");
        ports.iter().any(|port| port.port == PORT).then_some(()).ok_or(format!("{ports:?}"))
    })
    .await;
    process
}

pub(super) async fn connections_go_both_ways(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let _server = serve(stage, &sandbox).await;
    let mut one = sandbox.inside().dial(PORT).await.expect("connected");
    let mut two = sandbox.inside().dial(PORT).await.expect("connected");
    for connection in [&mut two, &mut one] {
        let mut buf = [0; 5];
        connection.write_all(b"hello").await.expect("written");
        timeout(PATIENCE, connection.read_exact(&mut buf)).await.expect("in time").expect("read");
        assert_eq!(&buf, b"hello");
    }
    // A connection without a reader does not block another.
    let flood = vec![7; 64 << 20];
    let stuck = timeout(std::time::Duration::from_millis(300), one.write_all(&flood)).await;
    assert!(stuck.is_err(), "writes to a connection without a reader must block");
    two.write_all(b"again").await.expect("written");
    two.shutdown().await.expect("ended");
    let mut rest = Vec::new();
    timeout(PATIENCE, two.read_to_end(&mut rest)).await.expect("in time").expect("read");
    assert_eq!(rest, b"again");
    drop(one);
    assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    Ok(())
}

pub(super) async fn ports_are_listed(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    assert_eq!(sandbox.inside().ports().await.expect("listed"), []);
    let server = serve(stage, &sandbox).await;
    server.handle().kill().await.expect("killed");
    eventually("it has stopped listening", || async {
        let ports = sandbox.inside().ports().await.expect("listed");
        ports.is_empty().then_some(()).ok_or(format!("{ports:?}"))
    })
    .await;
    Ok(())
}

pub(super) async fn port_without_a_listener_is_refused(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    assert_eq!(code_of(sandbox.inside().dial(PORT).await), RuntimeErrorCode::NotFound);
    Ok(())
}

pub(super) async fn sockets_are_reached_by_path(stage: &Stage) -> CaseResult {
    const PATH: &str = "/tmp/echo.sock";
    let sandbox = stage.launch().await;
    assert_eq!(code_of(sandbox.inside().dial_unix(PATH).await), RuntimeErrorCode::NotFound);
    let spec = ExecSpec::new(stage.subject.echo_socket(PATH));
    let server = sandbox.inside().exec(spec).await.expect("started");
    eventually("it listens", || async {
        sandbox.inside().dial_unix(PATH).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let mut one = sandbox.inside().dial_unix(PATH).await.expect("connected");
    let mut two = sandbox.inside().dial_unix(PATH).await.expect("connected");
    for connection in [&mut two, &mut one] {
        connection.write_all(b"hello").await.expect("written");
        connection.shutdown().await.expect("ended");
        let mut all = Vec::new();
        timeout(PATIENCE, connection.read_to_end(&mut all)).await.expect("in time").expect("read");
        assert_eq!(all, b"hello");
    }
    server.handle().kill().await.expect("killed");
    // A killed program may still listen for a moment.
    eventually("it has stopped listening", || async {
        match sandbox.inside().dial_unix(PATH).await {
            Ok(_) => Err("it still listens".to_owned()),
            Err(_) => Ok(()),
        }
    })
    .await;
    assert_eq!(code_of(sandbox.inside().dial_unix(PATH).await), RuntimeErrorCode::NotFound);
    Ok(())
}
