//! Carries out one effect against the runtimes, until it is done or its deadline passes, and says
//! how it ended. It tries once: whether to try again is the kernel's decision.

use std::sync::Arc;
use std::time::Duration;

use harness::HarnessError;
use kernel::{Action, Effect, Failure, FailureKind, Launch, Outcome};
use model::{ClaimSettings, InstanceId};
use runtime::{ExecSpec, LaunchSpec, RunLimits, RuntimeError, RuntimeErrorCode, Sandbox};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::core::Core;
use crate::turns;

/// Carries out an effect.
pub(crate) async fn carry_out(core: &Arc<Core>, effect: Effect, give_up: &Notify) -> Outcome {
    let began = Instant::now();
    let deadline = core.clock.instant(effect.deadline);
    match timeout_at(deadline, act(core, &effect, give_up)).await {
        Ok(Ok(())) => {
            core.metrics.effect_done(&effect.action, began.elapsed());
            Outcome::Done
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, action = word(&effect.action), "an effect failed");
            core.metrics.effect_failed(&effect.action);
            outcome_of(&error)
        }
        Err(_) => {
            tracing::warn!(action = word(&effect.action), "an effect was not done in time");
            core.metrics.effect_failed(&effect.action);
            Outcome::TimedOut
        }
    }
}

/// The outcome of an effect that ended by a mistake of ours.
pub(crate) fn mistaken(error: &tokio::task::JoinError) -> Outcome {
    tracing::error!(%error, "an effect was given up");
    let detail = format!("a mistake of the server: {error}").into();
    Outcome::Failed(Failure { kind: FailureKind::Trouble, detail })
}

async fn act(core: &Arc<Core>, effect: &Effect, give_up: &Notify) -> Result<(), RuntimeError> {
    match &effect.action {
        Action::Launch(launch) => {
            tokio::select! {
                launched = self::launch(core, launch) => launched,
                () = give_up.notified() => {
                    let cause = "its end was asked for before it was ready";
                    Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, "launch", cause))
                }
            }
        }
        Action::Claim { instance, settings, .. } => {
            claim(core, *instance, settings.as_deref()).await
        }
        Action::Probe { instance } => probe(core, *instance, effect).await,
        Action::Freeze { instance } => find(core, *instance)?.freeze().await,
        Action::Thaw { instance } => find(core, *instance)?.thaw().await,
        Action::Kill { instance, workspace } => {
            core.harnesses.forget(*instance);
            core.runtimes.kill(*instance).await?;
            // One in memory is gone by now.
            match workspace {
                Some(workspace) => core.disk.remove(*workspace).await,
                None => Ok(()),
            }
        }
        Action::DeleteWorkspace { workspace } => core.disk.remove(*workspace).await,
        Action::Wipe { .. } | Action::Prove { .. } => {
            Err(unsupported("no runtime here wipes: used sandboxes are made anew"))
        }
        Action::KillProcess { .. } => Err(unsupported("no processes are kept here")),
        Action::StartTurn { instance, session, turn } => {
            turns::begin(core, *instance, *session, *turn)
        }
        Action::StopTurn { turn, .. } => {
            turns::stop(core, *turn).await;
            Ok(())
        }
        Action::Persist { .. } | Action::CopyWorkspace { .. } => {
            Err(unsupported("no sessions are served here"))
        }
    }
}

fn unsupported(cause: &'static str) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::Unsupported, "carry out an effect", cause)
}

async fn launch(core: &Core, launch: &Launch) -> Result<(), RuntimeError> {
    let template = &launch.template;
    let runtime = core.runtimes.of(&template.runtime).map_err(|refusal| {
        RuntimeError::new(RuntimeErrorCode::Unsupported, "launch", refusal.cause)
    })?;
    let spec = LaunchSpec {
        instance: launch.instance,
        root: core.roots.of(&template.root).await?,
        limits: template.limits,
        workspace: core.disk.source_of(launch).await?,
        settings: launch.settings.clone(),
        ready_timeout: Duration::from_millis(template.ready_timeout_ms),
    };
    let sandbox = runtime.launch(spec).await?;
    if template.harness.program().is_some_and(|program| program.prewarm) {
        let ready = core.harnesses.prewarm(core, sandbox, template).await;
        ready.map_err(HarnessError::into_runtime_error)?;
    }
    Ok(())
}

/// Binds what is to be bound, which proves that the sandbox answers.
async fn claim(
    core: &Core,
    instance: InstanceId,
    settings: Option<&ClaimSettings>,
) -> Result<(), RuntimeError> {
    let sandbox = find(core, instance)?;
    match settings {
        Some(settings) => sandbox.claim(settings, None).await,
        None => sandbox.ping().await,
    }
}

/// A trivial command, run to its end.
async fn probe(core: &Core, instance: InstanceId, effect: &Effect) -> Result<(), RuntimeError> {
    let sandbox = find(core, instance)?;
    let left = core.clock.instant(effect.deadline).saturating_duration_since(Instant::now());
    let limits = RunLimits { output_bytes: 0, timeout: left.max(Duration::from_millis(1)) };
    let ran = sandbox.run(ExecSpec::argv(["true"]), limits).await?;
    if ran.exit.success() {
        return Ok(());
    }
    let cause = "a trivial command did not end well";
    Err(RuntimeError::new(RuntimeErrorCode::Protocol, "probe", cause))
}

fn find(core: &Core, instance: InstanceId) -> Result<Arc<dyn Sandbox>, RuntimeError> {
    core.runtimes.sandbox(instance).ok_or_else(|| {
        RuntimeError::new(RuntimeErrorCode::SandboxGone, "find a sandbox", "it is over")
    })
}

fn outcome_of(error: &RuntimeError) -> Outcome {
    use RuntimeErrorCode as Code;
    let kind = match error.code {
        Code::DeadlineExceeded | Code::ReadyTimeout => return Outcome::TimedOut,
        Code::SandboxGone | Code::SandboxUnknown | Code::OutOfMemory | Code::LauncherLost => {
            FailureKind::Gone
        }
        Code::Unsupported => FailureKind::Unsupported,
        Code::RootUnknown
        | Code::Full
        | Code::Duplicate
        | Code::LaunchFailed
        | Code::Invalid
        | Code::ProcessUnknown
        | Code::NotFound
        | Code::Exists
        | Code::Denied
        | Code::WrongKind
        | Code::LimitReached
        | Code::DiskFull
        | Code::TooLarge
        | Code::EventsUnread
        | Code::Protocol
        | Code::ShuttingDown
        | Code::System => FailureKind::Trouble,
    };
    Outcome::Failed(Failure { kind, detail: error.to_string().into() })
}

/// The word for an action in logs and metrics.
pub(crate) const fn word(action: &Action) -> &'static str {
    match action {
        Action::Launch(_) => "launch",
        Action::Claim { .. } => "claim",
        Action::Probe { .. } => "probe",
        Action::Wipe { .. } => "wipe",
        Action::Prove { .. } => "prove",
        Action::Freeze { .. } => "freeze",
        Action::Thaw { .. } => "thaw",
        Action::StartTurn { .. } => "start_turn",
        Action::StopTurn { .. } => "stop_turn",
        Action::KillProcess { .. } => "kill_process",
        Action::Persist { .. } => "persist",
        Action::Kill { .. } => "kill",
        Action::CopyWorkspace { .. } => "copy_workspace",
        Action::DeleteWorkspace { .. } => "delete_workspace",
    }
}
