//! The harness of a sandbox over a WebSocket, for the owner of the sandbox. Refusals are problems
//! before the upgrade; the upgrade happens when the harness is ready.

use axum::extract::State;
use axum::response::Response;
use engine::UseKind;
use model::{ErrorCode, SandboxId};
use wire::harness::HARNESS_LINE_BYTES_MAX;

use crate::exec::USING;
use crate::harness_lines::HarnessConnection;
use crate::terminals::{Upgrade, checked_upgrade};
use crate::use_routes::SANDBOX_REFUSES;
use web::app::App;
use web::front::{By, Needs};
use web::operation::{Operation, Route, Verb};
use web::path::Named;
use web::query::NoQuery;
use web::refused::Refused;
use web::use_target::UseTarget;

/// More than any line, so that the refusal of a line that is too long can be sent.
const MESSAGE_BYTES_MAX: usize = 4 * HARNESS_LINE_BYTES_MAX;

pub(super) fn routes() -> Vec<Route> {
    let hold = Operation::new(
        "hold_harness",
        "Exchange lines with the sandbox's harness; meanwhile no other client can, and the session has no turn. \
         The program ends with the WebSocket",
    )
    .answers(
        101,
        "A WebSocket: each text message is one line, at most 1 MiB to the harness and 4 MiB from it. Closed with \
         4000 when the program ended, 4001 when it ran out of memory, 4002 when the sandbox has ended, 4003 and 4004 \
         when the program wrote a line that is too long or not UTF-8; the reason is an error code and its cause",
        [],
    );
    vec![Route::new(
        Verb::Get,
        "/v1/sandboxes/{id}/harness",
        Needs::Use,
        self::hold,
        hold.refuses(USING).refuses(SANDBOX_REFUSES).refuses(&[
            ErrorCode::HarnessBusy,
            ErrorCode::NoHarness,
            ErrorCode::UpgradeRequired,
        ]),
    )]
}

async fn hold(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
    asked: Upgrade,
) -> Result<Response, Refused> {
    let upgrade = checked_upgrade(asked, MESSAGE_BYTES_MAX)?;
    let slot = app.long_lived.begin(caller.key)?;
    let used = UseTarget::from(id).begin(&app, caller, UseKind::Harness).await?;
    let held = used.hold_harness().await?;
    let connection = HarnessConnection { app, caller, held, used, slot };
    Ok(upgrade.on_upgrade(|socket| connection.run(socket)))
}
