//! Carries out one effect against the runtimes until it is done or its deadline passes, and reports
//! its outcome. It tries once: the kernel decides about another try.

use std::sync::Arc;
use std::time::Duration;

use harness::HarnessError;
use kernel::{Action, Effect, Failure, FailureKind, Launch, Outcome};
use model::template::RuntimeKind;
use model::{ClaimSettings, InstanceId, Refusal, SandboxId};
use runtime::{ExecSpec, LaunchSpec, RunLimits, RuntimeError, RuntimeErrorCode, Sandbox};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::core::Core;
use crate::network::{self, Binding};
use crate::{metering, processes, turns, workspace_persistence};

/// Carries out an effect.
pub(crate) async fn carry_out(core: &Arc<Core>, effect: Effect, give_up: &Notify) -> Outcome {
    let began = Instant::now();
    let deadline = core.clock.instant(effect.deadline);
    // After the effect the instance may be gone.
    let runtime = runtime_of(core, &effect.action);
    match timeout_at(deadline, act(core, &effect, give_up)).await {
        Ok(Ok(())) => {
            core.metrics.effect_done(&effect.action, runtime, began.elapsed());
            Outcome::Done
        }
        Ok(Err(error)) => {
            let (sandbox, action) = (effect.id.sandbox, action_name(&effect.action));
            tracing::debug!(%sandbox, action, %error, "an effect failed");
            core.metrics.effect_failed(&effect.action, runtime);
            if matches!(effect.action, Action::RestartProcess { .. }) {
                not_restarted(error.into_runtime_error())
            } else {
                error.outcome()
            }
        }
        Err(_) => {
            let (sandbox, action) = (effect.id.sandbox, action_name(&effect.action));
            tracing::warn!(%sandbox, action, "an effect did not end before its deadline");
            core.metrics.effect_failed(&effect.action, runtime);
            Outcome::TimedOut
        }
    }
}

/// The runtime in which an action happens, if it happens in one.
fn runtime_of(core: &Core, action: &Action) -> Option<RuntimeKind> {
    match action {
        Action::Launch(launch) => Some(launch.template.runtime),
        Action::Claim { instance, .. }
        | Action::Probe { instance }
        | Action::Wipe { instance }
        | Action::Prove { instance }
        | Action::Freeze { instance }
        | Action::Thaw { instance }
        | Action::Quiesce { instance }
        | Action::Unquiesce { instance }
        | Action::StartTurn { instance, .. }
        | Action::StopTurn { instance, .. }
        | Action::KillProcess { instance, .. }
        | Action::RestartProcess { instance, .. }
        | Action::Persist { instance, .. }
        | Action::Kill { instance, .. } => core.runtimes.kind_of(*instance),
        Action::CopyWorkspace { .. }
        | Action::DeleteWorkspace { .. }
        | Action::ArchiveWorkspace { .. } => None,
    }
}

/// The outcome of an effect whose task panicked.
pub(crate) fn panicked(sandbox: SandboxId, error: &tokio::task::JoinError) -> Outcome {
    tracing::error!(%sandbox, %error, "an effect panicked; the kernel counts it as failed");
    let detail = format!("internal error: {error}").into();
    Outcome::Failed(Failure { kind: FailureKind::Trouble, detail })
}

/// Why an effect was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EffectError {
    /// The runtime refused, or other code reports in its terms.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Files that should exist do not, or cannot be read.
    #[error("the files are gone: {0}")]
    FilesGone(String),
    /// Only the guest reaches the files, and the kernel did not say that it runs. Nothing was done.
    #[error("only the guest of the sandbox can reach the files")]
    NeedsGuest,
    /// The request or the node is the reason: with another sandbox it would fail as well.
    #[error("{0}")]
    Refused(Refusal),
}

impl EffectError {
    /// As a runtime error, where it makes no difference that files are gone.
    pub(crate) fn into_runtime_error(self) -> RuntimeError {
        match self {
            Self::Runtime(error) => error,
            Self::FilesGone(cause) => {
                RuntimeError::new(RuntimeErrorCode::System, "use a workspace", cause)
            }
            Self::NeedsGuest => {
                let cause = "only the guest of the sandbox can reach the files";
                RuntimeError::new(RuntimeErrorCode::System, "use a workspace", cause)
            }
            Self::Refused(refusal) => {
                RuntimeError::new(RuntimeErrorCode::System, "use the network", refusal.cause)
            }
        }
    }

    /// As the answer to a request.
    pub(crate) fn into_refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Runtime(_) | Self::FilesGone(_) | Self::NeedsGuest => {
                self.into_runtime_error().into()
            }
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::Runtime(error) => outcome_of(error),
            Self::FilesGone(cause) => {
                let detail = cause.as_str().into();
                Outcome::Failed(Failure { kind: FailureKind::FilesGone, detail })
            }
            Self::NeedsGuest => {
                let detail = self.to_string().into();
                Outcome::Failed(Failure { kind: FailureKind::NeedsGuest, detail })
            }
            Self::Refused(refusal) => {
                let kind = FailureKind::Refused(refusal.code);
                Outcome::Failed(Failure { kind, detail: (&*refusal.cause).into() })
            }
        }
    }
}

async fn act(core: &Arc<Core>, effect: &Effect, give_up: &Notify) -> Result<(), EffectError> {
    match &effect.action {
        Action::Launch(launch) => {
            tokio::select! {
                launched = self::launch(core, launch) => launched,
                () = give_up.notified() => {
                    let cause = "the sandbox was asked to end before it was ready";
                    Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, "launch", cause).into())
                }
            }
        }
        Action::ArchiveWorkspace { workspace } => {
            tokio::select! {
                archived = workspace_persistence::archive(core, *workspace) => archived,
                () = give_up.notified() => {
                    Err(unsupported("the workspace is to be deleted").into())
                }
            }
        }
        Action::Persist { instance, workspace, guest_awake } => {
            workspace_persistence::persist(core, *instance, *workspace, *guest_awake).await
        }
        Action::CopyWorkspace { from, instance, guest_awake, to, template } => {
            let source = workspace_persistence::Source {
                workspace: *from,
                instance: *instance,
                guest_awake: *guest_awake,
            };
            workspace_persistence::copy(core, source, *to, template).await
        }
        Action::Claim { instance, settings, .. } => {
            claim(core, *instance, settings.as_deref(), core.clock.instant(effect.deadline)).await
        }
        Action::Probe { instance } => Ok(probe(core, *instance, effect).await?),
        Action::Freeze { instance } | Action::Quiesce { instance } => {
            Ok(find(core, *instance)?.freeze().await?)
        }
        Action::Thaw { instance } | Action::Unquiesce { instance } => {
            Ok(find(core, *instance)?.thaw().await?)
        }
        Action::Kill { instance, workspace } => {
            metering::use_ends(core, *instance);
            network::ends(core, *instance).await;
            core.runtimes.kill(*instance).await?;
            network::forget(core, *instance);
            metering::end(core, *instance);
            core.harnesses.forget(*instance);
            // A workspace in memory is gone by now.
            match workspace {
                Some(workspace) => Ok(core.disk.remove(*workspace).await?),
                None => Ok(()),
            }
        }
        Action::DeleteWorkspace { workspace } => Ok(core.disk.remove(*workspace).await?),
        Action::Wipe { instance } => Ok(wipe(core, *instance).await?),
        Action::Prove { instance } => {
            let sandbox = find(core, *instance)?;
            sandbox.prove().await?;
            core.networks.apply(core, &*sandbox, Some(&Binding::default())).await?;
            core.networks.prepare_trust(core, &sandbox).await;
            Ok(())
        }
        Action::KillProcess { process, .. } => {
            Ok(processes::kill_program(core, effect.id.sandbox, *process).await?)
        }
        Action::RestartProcess { instance, process, attempt } => {
            let sandbox = effect.id.sandbox;
            Ok(processes::restart(core, sandbox, *instance, *process, *attempt).await?)
        }
        Action::StartTurn { instance, session, turn } => {
            Ok(turns::begin(core, *instance, *session, *turn)?)
        }
        Action::StopTurn { turn, .. } => {
            turns::stop(core, *turn).await;
            Ok(())
        }
    }
}

/// What the kernel's settings of an instance mean. An instance that the kernel is ending gets none.
async fn binding_of(core: &Core, instance: InstanceId) -> Result<Binding, EffectError> {
    let Some(view) = core.read(|kernel| kernel.network_of(instance)) else {
        return Ok(Binding::default());
    };
    Binding::of(core, &view).await.map_err(EffectError::Refused)
}

fn unsupported(cause: &'static str) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::Unsupported, "carry out an effect", cause)
}

async fn launch(core: &Core, launch: &Launch) -> Result<(), EffectError> {
    let template = &launch.template;
    let runtime = core.runtimes.of(template.runtime).map_err(|refusal| {
        RuntimeError::new(RuntimeErrorCode::Unsupported, "launch", refusal.cause)
    })?;
    let root = core.roots.of(template.runtime, &template.root).await?;
    let mounts = core.mounts.of(template).await?;
    let binding = binding_of(core, launch.instance).await?;
    let began = Instant::now();
    let prepared = core.disk.prepare(launch).await.inspect_err(|_| {
        if launch.restore {
            core.metrics.restore_failed();
        }
    })?;
    let spec = LaunchSpec {
        instance: launch.instance,
        root,
        limits: template.limits,
        workspace: prepared.source,
        aliases: template.workspace.alias_names(),
        mounts,
        settings: (launch.settings.is_some() || !binding.env.is_empty())
            .then(|| Arc::new(binding.settings(launch.settings.as_deref()))),
        ready_timeout: Duration::from_millis(template.ready_timeout_ms),
    };
    let sandbox = runtime.launch(spec).await?;
    if prepared.unpack {
        let back = core.disk.unpack_archive(launch.workspace, Arc::clone(&sandbox)).await;
        back.inspect_err(|_| core.metrics.restore_failed())?;
    }
    if launch.restore {
        core.metrics.restored(began.elapsed());
    } else if let Some(seed) = launch.settings.as_ref().and_then(|settings| settings.seed) {
        core.disk.unpack_seed(seed, Arc::clone(&sandbox)).await?;
    }
    core.networks.apply(core, &*sandbox, Some(&binding)).await?;
    binding.write_files(core, &sandbox).await?;
    core.networks.prepare_trust(core, &sandbox).await;
    if template.harness.program().is_some_and(|program| program.prewarm) {
        let ready = core.harnesses.prewarm(core, sandbox, template).await;
        ready.map_err(HarnessError::into_runtime_error)?;
    }
    metering::begin(core, launch.instance);
    Ok(())
}

/// Removes what the last user left.
async fn wipe(core: &Core, instance: InstanceId) -> Result<(), RuntimeError> {
    // The next user must not read what this harness wrote.
    core.harnesses.forget(instance);
    metering::use_ends(core, instance);
    core.networks.forget_user(core, instance).await;
    find(core, instance)?.wipe().await?;
    metering::begin(core, instance);
    Ok(())
}

/// Binds the caller's settings, which proves that the sandbox answers.
async fn claim(
    core: &Core,
    instance: InstanceId,
    settings: Option<&ClaimSettings>,
    deadline: Instant,
) -> Result<(), EffectError> {
    let sandbox = find(core, instance)?;
    let binding = binding_of(core, instance).await?;
    let left = deadline.saturating_duration_since(Instant::now());
    let seed = settings.and_then(|settings| settings.seed);
    let resolved = binding.settings(settings);
    let claimed = async {
        if settings.is_some() || !resolved.env.is_empty() {
            sandbox.claim(&resolved, None).await?;
        } else {
            sandbox.inside().ping().await?;
        }
        binding.write_files(core, &sandbox).await?;
        Ok(())
    };
    // Neither waits for the other: the first program starts after both. An egress process that does
    // not answer must be known before the claim counts as failed: the sandbox is not at fault.
    let network = timeout(left * 3 / 4, core.networks.apply(core, &*sandbox, Some(&binding)));
    let network = async { network.await.unwrap_or_else(|_| Err(network::no_answer())) };
    let claimed = async { tokio::try_join!(claimed, network).map(drop) };
    let Some(seed) = seed else { return claimed.await };
    // A claimed sandbox never had another user, so its workspace is empty. Files and settings do not
    // wait for each other: if one fails, the sandbox is not used.
    tokio::try_join!(claimed, core.disk.unpack_seed(seed, Arc::clone(&sandbox))).map(drop)
}

/// A trivial command, run to its end.
async fn probe(core: &Core, instance: InstanceId, effect: &Effect) -> Result<(), RuntimeError> {
    let sandbox = find(core, instance)?;
    let left = core.clock.instant(effect.deadline).saturating_duration_since(Instant::now());
    let limits = RunLimits { output_bytes: 0, timeout: left.max(Duration::from_millis(1)) };
    let ran = sandbox.inside().run(ExecSpec::argv(["true"]), limits).await?;
    if ran.exit.success() {
        return Ok(());
    }
    let cause = "the command `true` failed in the sandbox";
    Err(RuntimeError::new(RuntimeErrorCode::Protocol, "probe", cause))
}

pub(crate) fn find(core: &Core, instance: InstanceId) -> Result<Arc<dyn Sandbox>, RuntimeError> {
    core.runtimes.sandbox(instance).ok_or_else(|| {
        RuntimeError::new(RuntimeErrorCode::SandboxGone, "find a sandbox", "the sandbox has ended")
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

/// A program was not restarted. Its user reads the cause, as after a failed start.
fn not_restarted(error: RuntimeError) -> Outcome {
    let outcome = outcome_of(&error);
    if let Outcome::Failed(Failure { kind, .. }) = outcome
        && kind != FailureKind::Gone
    {
        let detail = (&*Refusal::from(error).cause).into();
        return Outcome::Failed(Failure { kind, detail });
    }
    outcome
}

/// The name of an action in logs and metrics.
pub(crate) const fn action_name(action: &Action) -> &'static str {
    match action {
        Action::Launch(_) => "launch",
        Action::Claim { .. } => "claim",
        Action::Probe { .. } => "probe",
        Action::Wipe { .. } => "wipe",
        Action::Prove { .. } => "prove",
        Action::Freeze { .. } => "freeze",
        Action::Thaw { .. } => "thaw",
        Action::Quiesce { .. } => "hold_still",
        Action::Unquiesce { .. } => "let_run",
        Action::StartTurn { .. } => "start_turn",
        Action::StopTurn { .. } => "stop_turn",
        Action::KillProcess { .. } => "kill_process",
        Action::RestartProcess { .. } => "restart_process",
        Action::Persist { .. } => "persist",
        Action::Kill { .. } => "kill",
        Action::CopyWorkspace { .. } => "copy_workspace",
        Action::DeleteWorkspace { .. } => "delete_workspace",
        Action::ArchiveWorkspace { .. } => "archive_workspace",
    }
}
