//! Waits until a process listens on ports. The wait ends with the process, and is refused if
//! another program already listens on one of the ports.

use std::time::Duration;

use engine::{Socket, Use};
use model::{ErrorCode, ProcessRecord, Refusal};
use tokio::time::sleep;

use super::errors::BlaxelError;

/// How often the ports are polled, first often and then less.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LAST: Duration = Duration::from_millis(200);
const LISTEN: &str = "LISTEN";

/// How the wait ended.
pub(super) enum Opened {
    /// All of them are open.
    All,
    /// The process has ended.
    Over(Box<ProcessRecord>),
}

/// Refuses ports that something listens on already.
pub(super) async fn refuse_taken(used: &Use, ports: &[u16]) -> Result<(), BlaxelError> {
    if ports.is_empty() {
        return Ok(());
    }
    let open = used.ports().await?;
    match ports.iter().find(|port| open.iter().any(|one| one.port == **port)) {
        None => Ok(()),
        Some(port) => {
            let cause = format!("another program already listens on port {port}");
            Err(Refusal::new(ErrorCode::PortTaken, cause).into())
        }
    }
}

/// Until the process, or what descends from it, listens on all of them.
pub(super) async fn until_open(
    used: &Use,
    record: &ProcessRecord,
    ports: &[u16],
    over: impl Future<Output = Result<ProcessRecord, Refusal>>,
) -> Result<Opened, BlaxelError> {
    tokio::pin!(over);
    let mut look = LOOK_FIRST;
    loop {
        let looked = async {
            let sockets = used.sockets(record.pid).await?;
            if has_all(&sockets, ports) {
                return Ok::<_, Refusal>(true);
            }
            // After a restart the process has another, unknown process id: then any listener
            // counts, since the port was free before.
            let open = if record.restart.is_some() { used.ports().await? } else { Vec::new() };
            Ok(!open.is_empty()
                && ports.iter().all(|port| open.iter().any(|one| one.port == *port)))
        };
        tokio::select! {
            biased;
            record = &mut over => return Ok(Opened::Over(Box::new(record?))),
            looked = looked => match looked {
                Ok(true) => return Ok(Opened::All),
                Ok(false) => {}
                // It is between two starts.
                Err(refusal) if refusal.code == ErrorCode::ProcessUnknown => {}
                Err(refusal) => return Err(refusal.into()),
            },
        }
        tokio::select! {
            biased;
            record = &mut over => return Ok(Opened::Over(Box::new(record?))),
            () = sleep(look) => look = (look * 2).min(LOOK_LAST),
        }
    }
}

fn has_all(sockets: &[Socket], ports: &[u16]) -> bool {
    let listens = |port: &u16| {
        sockets.iter().any(|socket| socket.state == LISTEN && socket.local_port == *port)
    };
    ports.iter().all(listens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_wait_counts_only_listening_sockets() {
        let socket = |port, state: &str| Socket {
            pid: 1,
            program: "node".to_owned(),
            protocol: "tcp".to_owned(),
            local_address: "0.0.0.0".to_owned(),
            local_port: port,
            remote_address: String::new(),
            remote_port: 0,
            state: state.to_owned(),
        };
        let open = [socket(80, "LISTEN"), socket(81, "ESTABLISHED")];
        assert!(has_all(&open, &[80]));
        assert!(has_all(&open, &[]));
        assert!(!has_all(&open, &[81]));
        assert!(!has_all(&open, &[80, 82]));
    }
}
