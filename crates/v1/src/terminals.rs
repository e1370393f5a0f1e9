//! Terminals over web sockets: opens a new one, or attaches to a process. Refusals are problems
//! before the upgrade.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use engine::{Command, ProcessInput, ProcessRef, ProcessRequest, TerminalSize, UseKind};
use model::{ErrorCode, SandboxId};

use crate::events::AFTER_MAX;
use crate::exec::USING;
use crate::terminal::{AttachedTerminal, Ending};
use crate::use_routes::SANDBOX_REFUSES;
use web::app::App;
use web::front::{Admitted, Needs};
use web::input_checks::checked;
use web::operation::{Kind, Operation, Param, Route, Verb};
use web::path::{Named, NamedOf};
use web::query::Query;
use web::refused::Refused;
use web::subprotocol;
use web::use_target::UseTarget;

const ROWS: u64 = 24;
const COLUMNS: u64 = 80;
/// The largest message, either way.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// How much of what was written before is shown first.
const REPLAYED_BYTES: u64 = 64 << 10;
/// The shell that `SHELL` names, or else the best there is, which `SHELL` then names.
const SHELL: &str = "case \"${SHELL:-}\" in ''|/bin/sh) SHELL=$(command -v bash || command -v sh);; esac; \
                     export SHELL; exec \"$SHELL\"";
const TERM: &str = "xterm-256color";

pub(super) fn routes() -> Vec<Route> {
    let spoken = |id, about| {
        Operation::new(id, about).answers(
            101,
            "A WebSocket: bytes as binary messages both ways, and `TerminalWord`s as text messages: `resize` from the client, `process` first \
             and `exit` or `error` last from the server",
            [],
        )
    };
    let open = spoken(
        "open_terminal",
        "Open a terminal with a shell or another program, which ends with the WebSocket unless `keep` is set",
    );
    let attach = spoken("attach_process", "Attach to the input and output of a process");
    let using = |operation: Operation| operation.refuses(USING).refuses(SANDBOX_REFUSES);
    vec![
        Route::new(
            Verb::Get,
            "/v1/sandboxes/{id}/terminal",
            Needs::Use,
            self::open,
            using(open.query([
                Param::new("rows", Kind::Number(1, 65535), "Rows of the terminal; 24 if not given"),
                Param::new(
                    "columns",
                    Kind::Number(1, 65535),
                    "Columns of the terminal; 80 if not given",
                ),
                Param::new(
                    "command",
                    Kind::Text,
                    "A command line for the shell; an interactive shell if not given",
                ),
                Param::new("cwd", Kind::Text, "The working directory; `/workspace` if not given"),
                Param::new("name", Kind::Text, "The name of the process"),
                Param::new("keep", Kind::Flag, "The process continues after the WebSocket closes"),
            ]))
            .refuses(&[ErrorCode::ProcessNameTaken, ErrorCode::UpgradeRequired]),
        ),
        Route::new(
            Verb::Get,
            "/v1/sandboxes/{id}/processes/{process}/attach",
            Needs::Use,
            self::attach,
            using(attach.query([Param::new(
                "offset",
                Kind::Number(0, AFTER_MAX),
                "The offset in its log to begin at; the last 64 KiB if not given",
            )]))
            .refuses(&[ErrorCode::UpgradeRequired]),
        ),
    ]
}

pub(super) type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// A WebSocket on which so much is said at once at most, either way.
pub(super) fn checked_upgrade(
    asked: Upgrade,
    message_bytes_max: usize,
) -> Result<WebSocketUpgrade, Refused> {
    let wrong = |rejection: WebSocketUpgradeRejection| {
        Refused::upgrade(format!("the route requires a WebSocket: {}", rejection.body_text()))
    };
    let upgrade = asked.map_err(wrong)?;
    Ok(upgrade
        .protocols([subprotocol::NAME])
        .max_message_size(message_bytes_max)
        .max_frame_size(message_bytes_max))
}

async fn open(
    State(app): State<App>,
    Admitted { caller, request_id }: Admitted,
    mut query: Query,
    Named(id): Named<SandboxId>,
    asked: Upgrade,
) -> Result<Response, Refused> {
    let rows = query.number("rows", 1..=65535)?.unwrap_or(ROWS) as u16;
    let columns = query.number("columns", 1..=65535)?.unwrap_or(COLUMNS) as u16;
    let text = |text: Option<String>, field| text.map(|text| checked(field, text)).transpose();
    let command = text(query.text("command")?, "command")?;
    let cwd = text(query.text("cwd")?, "cwd")?;
    let name = query.text("name")?;
    let keep = query.flag("keep")?;
    query.done()?;
    let upgrade = checked_upgrade(asked, MESSAGE_BYTES_MAX)?;
    let slot = app.long_lived.begin(caller.key)?;
    let used = UseTarget::from(id).begin(&app, caller, UseKind::Stream).await?;
    let process = ProcessRequest {
        name,
        cwd,
        env: vec![("TERM".to_owned(), TERM.to_owned())],
        stdin: ProcessInput::Open,
        terminal: Some(TerminalSize { rows, columns }),
        ..ProcessRequest::new(Command::Shell(command.unwrap_or_else(|| SHELL.to_owned())))
    };
    let record = used.start_process(process).await?;
    let of = ProcessRef::Id(record.id);
    let ending = (!keep).then(|| Ending { app: app.clone(), caller, sandbox: id, of: of.clone() });
    let follow = app.engine.follow_log(caller, id, &of, engine::OutputSelection::Both, 0).await?;
    let request_id = request_id.to_str().unwrap_or_default().to_owned();
    let used = Some(used);
    let attached = AttachedTerminal {
        app,
        caller,
        sandbox: id,
        record,
        follow,
        request_id,
        ending,
        used,
        slot,
    };
    Ok(upgrade.on_upgrade(|socket| attached.run(socket)))
}

async fn attach(
    State(app): State<App>,
    Admitted { caller, request_id }: Admitted,
    mut query: Query,
    NamedOf(id, of): NamedOf<SandboxId, ProcessRef>,
    asked: Upgrade,
) -> Result<Response, Refused> {
    let offset = query.number("offset", 0..=AFTER_MAX)?;
    query.done()?;
    let upgrade = checked_upgrade(asked, MESSAGE_BYTES_MAX)?;
    let slot = app.long_lived.begin(caller.key)?;
    let record = app.engine.process(caller, id, &of).await?;
    let used = match record.end {
        Some(_) => None,
        None => Some(UseTarget::from(id).begin(&app, caller, UseKind::Stream).await?),
    };
    let of = ProcessRef::Id(record.id);
    let offset = offset.unwrap_or(record.log.end.saturating_sub(REPLAYED_BYTES));
    let follow =
        app.engine.follow_log(caller, id, &of, engine::OutputSelection::Both, offset).await?;
    let request_id = request_id.to_str().unwrap_or_default().to_owned();
    let attached = AttachedTerminal {
        app,
        caller,
        sandbox: id,
        record,
        follow,
        request_id,
        ending: None,
        used,
        slot,
    };
    Ok(upgrade.on_upgrade(|socket| attached.run(socket)))
}
