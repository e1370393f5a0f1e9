//! Refusals: each has a code that fits the request.

use model::{ErrorCode, Refusal};

use super::{Judged, Promise, holds};
use crate::coverage::event_name;
use crate::ledger::Ask;

use ErrorCode as Code;

const ANY_REQUEST: &[Code] = &[Code::ShuttingDown, Code::DeadlineExceeded, Code::ClientGone];
const POOL: &[Code] = &[Code::TemplateUnknown, Code::PoolClosed];
const PLACE: &[Code] = &[
    Code::CapacityExhausted,
    Code::QuotaExceeded,
    Code::LaunchFailed,
    Code::EgressUnavailable,
    Code::ReadyTimeout,
    Code::SandboxCrashed,
    Code::Oom,
    Code::DiskLimit,
    Code::DiskFull,
];
const SANDBOX: &[Code] =
    &[Code::SandboxUnknown, Code::SandboxGone, Code::LeaseLost, Code::NotLeased];
const SESSION: &[Code] =
    &[Code::SessionUnknown, Code::SessionEnded, Code::SessionStopped, Code::SessionBusy];

/// Checks an immediate refusal, by the kind of the event.
pub(crate) fn judge(kind: usize, refusal: &Refusal) -> Judged {
    let groups: &[&[Code]] = match event_name(kind) {
        "template_put" => &[&[Code::TemplateInvalid, Code::TemplateInUse]],
        "pool_resized" => &[POOL, &[Code::InvalidArgument, Code::TemplateInvalid]],
        "pool_drained" | "pool_resumed" => &[POOL],
        "lease_returned" | "lease_renewed" => &[&[Code::LeaseUnknown, Code::LeaseLost]],
        "use_ended" | "turn_ended" | "effect_ended" | "ticked" | "client_gone"
        | "instance_died" | "program_ended" | "shutdown_began" | "workspace_measured"
        | "disk_measured" => &[],
        "process_started" | "scale_written" => {
            &[SANDBOX, &[Code::LimitReached, Code::QueueFull, Code::CapacityExhausted]]
        }
        "process_end_requested" => &[&[Code::ProcessOver, Code::SandboxBusy]],
        "stop_requested" => &[SANDBOX],
        // Their answers are checked by the request.
        _ => return Ok(()),
    };
    fits(event_name(kind), groups, refusal)
}

/// Checks a refusal that answers a request.
pub(crate) fn answer(ask: &Ask, refusal: &Refusal) -> Judged {
    let (name, groups): (_, &[&[Code]]) = match ask {
        Ask::Checkout { .. } => (
            "checkout",
            &[
                POOL,
                PLACE,
                &[Code::CheckoutTimeout, Code::QueueFull, Code::PoolEmpty, Code::IdConflict],
            ],
        ),
        Ask::Use { .. } => (
            "use",
            &[
                SANDBOX,
                SESSION,
                POOL,
                PLACE,
                &[Code::Aborted, Code::IdConflict, Code::PersistFailed],
                &[Code::HarnessBusy, Code::NoHarness],
            ],
        ),
        Ask::Freeze { .. } | Ask::Thaw { .. } => (
            "freeze",
            &[
                SANDBOX,
                &[
                    Code::Unsupported,
                    Code::SandboxBusy,
                    Code::PersistFailed,
                    Code::SandboxCrashed,
                    Code::Oom,
                    Code::DiskLimit,
                ],
            ],
        ),
        Ask::Delete { .. } => ("delete", &[SANDBOX]),
        Ask::Create { .. } => {
            ("create", &[POOL, PLACE, &[Code::IdConflict, Code::Aborted, Code::SessionEnded]])
        }
        Ask::Turn { .. } => (
            "turn",
            &[
                SESSION,
                POOL,
                PLACE,
                &[
                    Code::TurnInProgress,
                    Code::HarnessBusy,
                    Code::TurnQueueFull,
                    Code::Aborted,
                    Code::IdConflict,
                    Code::PersistFailed,
                    Code::SandboxGone,
                ],
            ],
        ),
        Ask::Abort { .. } => ("abort", &[SESSION, &[Code::PersistFailed, Code::Aborted]]),
        Ask::Pause { .. } => {
            ("pause", &[SESSION, &[Code::TurnInProgress, Code::SandboxBusy, Code::Aborted]])
        }
        Ask::Resume { .. } => {
            let more = &[Code::Aborted, Code::PersistFailed, Code::SandboxGone];
            ("resume", &[SESSION, POOL, PLACE, more])
        }
        Ask::Stop { .. } | Ask::End { .. } => {
            ("stop", &[SESSION, &[Code::PersistFailed, Code::TurnInProgress, Code::Aborted]])
        }
        Ask::Fork { .. } => (
            "fork",
            &[
                SESSION,
                POOL,
                PLACE,
                &[Code::PersistFailed, Code::IdConflict, Code::Aborted, Code::TurnInProgress],
            ],
        ),
        Ask::Read { .. } => ("read", &[SANDBOX]),
        Ask::Destroy { .. } => ("destroy", &[POOL, &[Code::TemplateInUse]]),
    };
    if ANY_REQUEST.contains(&refusal.code) {
        return Ok(());
    }
    fits(name, groups, refusal)
}

fn fits(name: &str, groups: &[&[Code]], refusal: &Refusal) -> Judged {
    let known = groups.iter().any(|group| group.contains(&refusal.code));
    let known = known || refusal.code == Code::ShuttingDown;
    holds(Promise::RefusalFits, known, || format!("{name} was refused with {refusal}"))
}
