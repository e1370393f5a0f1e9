//! A bridge that is started before its session: Node itself runs and waits, and loads the bridge
//! when it gets the settings of a session. The bridge needs no change: it finds its environment, its
//! directory and its files as if it had been started with them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::template::HarnessProgram;
use runtime::{Duplex, ExecSpec, Sandbox};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::ash_bridge::{WORKSPACE, bridge_variables};
use crate::binding::Binding;
use crate::connection::Connection;
use crate::error::{HarnessError, HarnessErrorCode};
use crate::logs::Logs;
use crate::program::{Program, Started};
use crate::program_turn::ProgramHarness;
use crate::start::{UNBOUND_DIRECTORY, bridge, connect_bridge, first_line, in_time, spec};

/// What Node runs before the bridge.
const WAIT: &str = include_str!("early_bridge.mjs");

/// The longest line of Node before it has its settings.
const LINE_BYTES_MAX: usize = 1024;

/// Variables that Node and its libraries read when they start: too late to set them afterwards.
const READ_AT_START: &[&str] = &["NODE_", "LD_", "UV_", "SSL_", "OPENSSL_", "LC_", "LANG"];

/// Node, which waits for the settings of a session, or soon will.
pub(crate) struct EarlyBridge {
    sandbox: Arc<dyn Sandbox>,
    /// The bridge as it is started for a session, if Node does not get so far as to wait.
    program: HarnessProgram,
    logs: Arc<dyn Logs>,
    ready_timeout: Duration,
    early: Mutex<Option<Early>>,
}

struct Early {
    program: Program,
    channel: Box<dyn Duplex>,
    ready: oneshot::Receiver<()>,
}

/// A script as an address that Node can import.
fn data_url(script: &str) -> String {
    use std::fmt::Write as _;
    let mut url = "data:text/javascript,".to_owned();
    for byte in script.bytes() {
        if byte.is_ascii_alphanumeric() {
            url.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

/// The command of a bridge that waits. Templates have been validated: it is `node SCRIPT ...`.
fn waiting_command(program: &HarnessProgram) -> HarnessProgram {
    let mut command = program.command.clone();
    command.splice(1..1, ["--import".to_owned(), data_url(WAIT)]);
    HarnessProgram { command, ..program.clone() }
}

impl EarlyBridge {
    /// Starts Node, and does not wait for it: a pool is refilled without it.
    pub(crate) async fn start(
        sandbox: Arc<dyn Sandbox>,
        program: &HarnessProgram,
        logs: Arc<dyn Logs>,
        ready_timeout: Duration,
    ) -> Result<Self, HarnessError> {
        let spec = ExecSpec {
            cwd: Some(UNBOUND_DIRECTORY.to_owned()),
            ..spec(&waiting_command(program), &BTreeMap::new()).channel()
        };
        let ready_byte = Some(crate::ash_bridge::READY_BYTE);
        let started = Program::start(&*sandbox, spec, ready_byte, Arc::clone(&logs)).await?;
        let Started { program: node, channel, ready } = started;
        let Some(channel) = channel else {
            let cause = "the runtime gave the harness no channel";
            return Err(HarnessError::new(HarnessErrorCode::NotStarted, cause));
        };
        let early = Mutex::new(Some(Early { program: node, channel, ready }));
        Ok(Self { sandbox, program: program.clone(), logs, ready_timeout, early })
    }

    fn early(&self) -> MutexGuard<'_, Option<Early>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.early().as_ref().is_some_and(|early| early.program.is_running())
    }

    /// Whether all settings of a session can still be given to it.
    pub(crate) fn fits(binding: &Binding) -> bool {
        let is_late = |name: &String| READ_AT_START.iter().any(|start| name.starts_with(start));
        !binding.env.keys().any(is_late)
    }

    /// Gives it the settings of its session, and waits until the bridge is ready. If Node never
    /// waits for them (it is too old, or was killed), the bridge is started for the session.
    pub(crate) async fn bind(
        &self,
        binding: &Binding,
    ) -> Result<Arc<ProgramHarness>, HarnessError> {
        let deadline = Instant::now() + self.ready_timeout;
        let Some(Early { program, channel, ready }) = self.early().take() else {
            let cause = "the bridge has a session already";
            return Err(HarnessError::new(HarnessErrorCode::Busy, cause));
        };
        let mut connection = Connection::new(channel, LINE_BYTES_MAX);
        let waits = first_line(&program, &mut connection);
        if let Err(error) = in_time(deadline, &program.error_tail(), waits).await {
            return self.start_for(program, error, binding).await;
        }
        let (mut channel, _, _) = connection.into_parts();
        let mut env = binding.env.clone();
        env.extend(bridge_variables(binding.session, binding.sandbox));
        let settings = format!("{}\n", json!({ "env": env, "cwd": WORKSPACE }));
        let given = async {
            // If it does not read them, its end says why.
            let _ = channel.write_all(settings.as_bytes()).await;
            let _ = channel.flush().await;
            Ok(())
        };
        in_time(deadline, &program.error_tail(), given).await?;
        connect_bridge(&*self.sandbox, program, ready, binding, deadline).await
    }

    /// Starts the bridge for its session, in place of Node that never waited for it.
    async fn start_for(
        &self,
        early: Program,
        error: HarnessError,
        binding: &Binding,
    ) -> Result<Arc<ProgramHarness>, HarnessError> {
        if error.code == HarnessErrorCode::SandboxGone {
            return Err(error);
        }
        early.log("the bridge could not be started early: it is started again");
        early.kill().await;
        let logs = Arc::clone(&self.logs);
        bridge(&*self.sandbox, &self.program, binding, logs, self.ready_timeout).await
    }
}

#[cfg(test)]
mod tests {
    use model::{Generation, SandboxId, SessionId};

    use super::*;

    #[test]
    fn the_waiting_script_is_the_first_option_of_node() {
        let command = ["/usr/bin/node", "/b.js", "-x"].map(str::to_owned).to_vec();
        let waiting = waiting_command(&HarnessProgram { command, prewarm: true }).command;
        assert_eq!((&*waiting[0], &*waiting[1]), ("/usr/bin/node", "--import"));
        assert_eq!(waiting[3..], ["/b.js", "-x"]);
        assert_eq!(data_url("a b\n"), "data:text/javascript,a%20b%0A");
        assert!(waiting[2].bytes().all(|byte| byte.is_ascii_graphic()));
    }

    #[test]
    fn settings_that_node_reads_at_its_start_need_a_new_one() {
        for (name, fits) in [
            ("TOKEN", true),
            ("TZ", true),
            ("NODE_OPTIONS", false),
            ("NODE_EXTRA_CA_CERTS", false),
            ("LD_PRELOAD", false),
            ("UV_THREADPOOL_SIZE", false),
        ] {
            let binding = Binding {
                session: SessionId::NIL,
                sandbox: SandboxId::NIL,
                generation: Generation(1),
                resumed: false,
                env: BTreeMap::from([(name.to_owned(), "x".to_owned())]),
                config: None,
            };
            assert_eq!(EarlyBridge::fits(&binding), fits, "{name}");
        }
    }
}
