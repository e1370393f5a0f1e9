//! Checks the request to start a process.

use engine::{ProcessInput, TerminalSize};
use model::process::RestartPolicy;
use wire::ProcessRequest;

use web::input_checks::{checked, checked_command, checked_env, checked_stdin};
use web::refused::Refused;

/// What to start, and what to wait for.
pub(super) struct StartRequest {
    pub(super) process: engine::ProcessRequest,
    pub(super) wait: Wait,
    pub(super) wait_ms: u64,
}

/// What to wait for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    End,
    Ports(Vec<u16>),
}

impl StartRequest {
    pub(super) fn new(request: ProcessRequest) -> Result<Self, Refused> {
        let wait = wait(&request)?;
        let wait_ms = request.wait_timeout_ms.unwrap_or(ProcessRequest::WAIT_MS);
        within("wait_timeout_ms", wait_ms, 1, ProcessRequest::WAIT_MS_MAX)?;
        if let Some(seconds) = request.timeout_s {
            within("timeout_s", seconds, 0, ProcessRequest::TIMEOUT_S_MAX)?;
        }
        let given = checked_stdin(request.stdin, request.stdin_base64)?;
        let stdin = match (given, request.stdin_open) {
            (None, false) => ProcessInput::Null,
            (None, true) => ProcessInput::Open,
            (Some(bytes), false) => ProcessInput::Bytes(bytes),
            (Some(_), true) => {
                let cause = "stdin_open: cannot be combined with stdin or stdin_base64";
                return Err(Refused::invalid("stdin_open", cause));
            }
        };
        let restart = match (request.restart_on_failure, request.max_restarts) {
            (true, max_restarts) => Some(RestartPolicy { max_restarts }),
            (false, None) => None,
            (false, Some(_)) => {
                let cause = "max_restarts: requires restart_on_failure";
                return Err(Refused::invalid("max_restarts", cause));
            }
        };
        let command = checked_command(request.command, request.argv)?;
        let process = engine::ProcessRequest {
            name: request.name,
            cwd: request.cwd.map(|cwd| checked("cwd", cwd)).transpose()?,
            env: checked_env(request.env)?,
            stdin,
            terminal: request.terminal.map(|size| checked_size("terminal", size)).transpose()?,
            keep_alive: request.keep_alive,
            timeout_ms: request.timeout_s.map(|seconds| seconds * 1000),
            restart,
            ..engine::ProcessRequest::new(command)
        };
        Ok(Self { process, wait, wait_ms })
    }
}

fn wait(request: &ProcessRequest) -> Result<Wait, Refused> {
    let ports = &request.wait_for_ports;
    let wrong =
        |cause: String| Refused::invalid("wait_for_ports", format!("wait_for_ports: {cause}"));
    if ports.len() > ProcessRequest::PORTS_MAX {
        return Err(wrong(format!("at most {} ports may be given", ProcessRequest::PORTS_MAX)));
    }
    if ports.contains(&0) {
        return Err(wrong("port 0 does not exist".to_owned()));
    }
    match (request.wait, ports.is_empty()) {
        (false, true) => Ok(Wait::Nothing),
        (true, true) => Ok(Wait::End),
        (false, false) => Ok(Wait::Ports(ports.clone())),
        (true, false) => Err(wrong("only one of wait_for_ports and wait may be given".to_owned())),
    }
}

fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), Refused> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Refused::invalid(field, format!("{field}: must be from {least} to {most}")))
}

/// The size of a terminal that has any.
pub(crate) fn checked_size(
    field: &'static str,
    size: wire::TerminalSize,
) -> Result<TerminalSize, Refused> {
    let wire::TerminalSize { rows, columns } = size;
    if rows == 0 || columns == 0 {
        return Err(Refused::invalid(
            field,
            format!("{field}: rows and columns of a terminal must be above 0"),
        ));
    }
    Ok(TerminalSize { rows, columns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_requests_are_refused_by_field() {
        let base = || ProcessRequest::shell("true");
        let size = |rows, columns| Some(wire::TerminalSize { rows, columns });
        for (request, field) in [
            (base(), None),
            (ProcessRequest::default(), Some("command")),
            (ProcessRequest { argv: Some(vec![]), ..base() }, Some("argv")),
            (ProcessRequest { cwd: Some(String::new()), ..base() }, Some("cwd")),
            (ProcessRequest { stdin_open: true, ..base() }, None),
            (
                ProcessRequest { stdin_open: true, stdin: Some("a".into()), ..base() },
                Some("stdin_open"),
            ),
            (ProcessRequest { stdin_base64: Some("a".into()), ..base() }, Some("stdin_base64")),
            (ProcessRequest { timeout_s: Some(0), ..base() }, None),
            (ProcessRequest { timeout_s: Some(u64::MAX), ..base() }, Some("timeout_s")),
            (ProcessRequest { wait_timeout_ms: Some(0), ..base() }, Some("wait_timeout_ms")),
            (ProcessRequest { wait_for_ports: vec![0], ..base() }, Some("wait_for_ports")),
            (ProcessRequest { wait_for_ports: vec![1; 33], ..base() }, Some("wait_for_ports")),
            (
                ProcessRequest { wait_for_ports: vec![1], wait: true, ..base() },
                Some("wait_for_ports"),
            ),
            (ProcessRequest { max_restarts: Some(1), ..base() }, Some("max_restarts")),
            (ProcessRequest { max_restarts: Some(1), restart_on_failure: true, ..base() }, None),
            (ProcessRequest { terminal: size(0, 80), ..base() }, Some("terminal")),
            (ProcessRequest { terminal: size(24, 80), ..base() }, None),
        ] {
            let shown = format!("{request:?}");
            let blamed = StartRequest::new(request).err().and_then(|refused| refused.field);
            assert_eq!(blamed.as_deref(), field, "{shown}");
        }
    }

    #[test]
    fn process_request_has_its_timeout_and_wait() {
        let request = ProcessRequest {
            timeout_s: Some(3),
            wait_for_ports: vec![80, 81],
            wait_timeout_ms: Some(7),
            ..ProcessRequest::argv(["a"])
        };
        let asked = StartRequest::new(request).unwrap_or_else(|refused| panic!("{refused:?}"));
        assert_eq!((asked.process.timeout_ms, asked.wait_ms), (Some(3000), 7));
        assert_eq!(asked.wait, Wait::Ports(vec![80, 81]));
    }
}
