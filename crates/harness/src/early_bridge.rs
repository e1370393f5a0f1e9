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
use crate::start::{UNBOUND_DIRECTORY, connect_bridge, first_line, in_time, spec};

/// What Node runs before the bridge.
const WAIT: &str = include_str!("early_bridge.mjs");

/// The longest line of Node before it has its settings.
const LINE_BYTES_MAX: usize = 1024;

/// Variables that Node and its libraries read when they start: too late to set them afterwards.
const READ_AT_START: &[&str] = &["NODE_", "LD_", "UV_", "SSL_", "OPENSSL_", "LC_", "LANG"];

/// Node, waiting for the settings of a session.
pub(crate) struct EarlyBridge {
    sandbox: Arc<dyn Sandbox>,
    ready_timeout: Duration,
    waiting: Mutex<Option<Waiting>>,
}

struct Waiting {
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
    /// Starts Node, and waits until it waits.
    pub(crate) async fn start(
        sandbox: Arc<dyn Sandbox>,
        program: &HarnessProgram,
        logs: Arc<dyn Logs>,
        ready_timeout: Duration,
    ) -> Result<Self, HarnessError> {
        let deadline = Instant::now() + ready_timeout;
        let spec = ExecSpec {
            cwd: Some(UNBOUND_DIRECTORY.to_owned()),
            ..spec(&waiting_command(program), &BTreeMap::new()).channel()
        };
        let ready_byte = Some(crate::ash_bridge::READY_BYTE);
        let Started { program, channel, ready } =
            Program::start(&*sandbox, spec, ready_byte, logs).await?;
        let Some(channel) = channel else {
            let cause = "the runtime gave the harness no channel";
            return Err(HarnessError::new(HarnessErrorCode::NotStarted, cause));
        };
        let mut connection = Connection::new(channel, LINE_BYTES_MAX);
        in_time(deadline, &program.error_tail(), first_line(&program, &mut connection)).await?;
        let (channel, _, _) = connection.into_parts();
        let waiting = Mutex::new(Some(Waiting { program, channel, ready }));
        Ok(Self { sandbox, ready_timeout, waiting })
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.waiting().as_ref().is_some_and(|waiting| waiting.program.is_running())
    }

    /// Whether all settings of a session can still be given to it.
    pub(crate) fn fits(binding: &Binding) -> bool {
        let is_late = |name: &String| READ_AT_START.iter().any(|start| name.starts_with(start));
        !binding.env.keys().any(is_late)
    }

    /// Gives it the settings of its session, and waits until the bridge is ready.
    pub(crate) async fn bind(
        &self,
        binding: &Binding,
    ) -> Result<Arc<ProgramHarness>, HarnessError> {
        let deadline = Instant::now() + self.ready_timeout;
        let Some(Waiting { program, mut channel, ready }) = self.waiting().take() else {
            let cause = "the bridge has a session already";
            return Err(HarnessError::new(HarnessErrorCode::Busy, cause));
        };
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
