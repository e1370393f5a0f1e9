//! The harness of a sandbox, for whoever has the sandbox: a line channel over a WebSocket. Refusals
//! come as problems before anything is agreed on, and that is when the harness is ready.

use axum::extract::State;
use axum::response::Response;
use engine::UseKind;
use model::{ErrorCode, SandboxId};
use wire::harness::HARNESS_LINE_BYTES_MAX;

use crate::app::App;
use crate::front::{By, Needs};
use crate::harness_lines::Spoken;
use crate::operation::{Operation, Route, Verb};
use crate::path::Named;
use crate::query::NoQuery;
use crate::refused::Refused;
use crate::routes::exec::USING;
use crate::routes::terminals::{Asked, agreed};
use crate::routes::used::Used as _;

/// More than any line, so that one which is too long can be told so.
const MESSAGE_BYTES_MAX: usize = 4 * HARNESS_LINE_BYTES_MAX;

pub(super) fn routes() -> Vec<Route> {
    let hold = Operation::new(
        "hold_harness",
        "Speak with the sandbox's harness line by line; nobody else does meanwhile, nor has the session a turn. \
         The program ends with the WebSocket",
    )
    .answers(
        101,
        "A WebSocket: a text is a line without its end, at most 1 MiB to the harness and 4 MiB from it. Closed with \
         4000 when the program ended, 4001 when it ran out of memory, 4002 when the sandbox is gone, 4003 and 4004 \
         when the program said what cannot be passed on; the reason is a code and its cause",
        [],
    );
    vec![Route::new(
        Verb::Get,
        "/v1/sandboxes/{id}/harness",
        Needs::Use,
        self::hold,
        hold.refuses(USING).refuses(SandboxId::REFUSES).refuses(&[
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
    asked: Asked,
) -> Result<Response, Refused> {
    let upgrade = agreed(asked, MESSAGE_BYTES_MAX)?;
    let place = app.lasting.begin(caller.key)?;
    let used = id.begin(&app, caller, UseKind::Harness).await?;
    let held = used.hold_harness().await?;
    let spoken = Spoken { app, caller, held, used, place };
    Ok(upgrade.on_upgrade(|socket| spoken.speak(socket)))
}
