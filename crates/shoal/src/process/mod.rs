//! `shoal process`: processes of a sandbox that run on after the command that started them.

mod arguments;
mod logs;

use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use client::{Client, ClientError, ProcessFilter};
use tokio::task::block_in_place;
use wire::{Process, Time};

pub(crate) use self::arguments::Arguments;
use self::arguments::{Act, ListArgs, ProcessArgs, StartArgs, StdinArgs, WaitArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::relative_time;
use crate::run::streams::{read_input, write_all};
use crate::server::cannot;
use crate::table::Table;

/// Processes per request.
const PAGE: u32 = 500;
/// The most input that is sent at once.
const INPUT_BYTES_MAX: u64 = 16 << 20;

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    match arguments.act {
        Act::Start(started) => start(&started, output),
        Act::Ls(listed) => list(&listed, output),
        Act::Show(named) => act(&named, "show the process", output, async |client, named| {
            client.sandbox(named.sandbox).process(&named.process).await
        }),
        Act::Logs(wanted) => logs::main(&wanted, output),
        Act::Stop(stopped) => {
            act(&stopped.of, "stop the process", output, async |client, named| {
                client.sandbox(named.sandbox).stop_process(&named.process, stopped.grace).await
            })
        }
        Act::Kill(named) => act(&named, "kill the process", output, async |client, named| {
            client.sandbox(named.sandbox).kill_process(&named.process).await
        }),
        Act::Signal(sent) => act(&sent.of, "send the signal", output, async |client, named| {
            let sandbox = client.sandbox(named.sandbox);
            sandbox.signal_process(&named.process, &sent.signal, sent.tree).await
        }),
        Act::Stdin(fed) => feed(&fed),
        Act::Wait(waited) => wait(&waited, output),
    }
}

fn act(
    named: &ProcessArgs,
    what: &str,
    output: &Output,
    act: impl AsyncFnOnce(&Client, &ProcessArgs) -> Result<Process, ClientError>,
) -> Result<ExitCode, Failure> {
    let process =
        named.server.with(async |client| act(&client, named).await.map_err(cannot(what)))?;
    print_process(&process, named.json, output)
}

/// Prints a process.
fn print_process(process: &Process, json: bool, output: &Output) -> Result<ExitCode, Failure> {
    if json {
        output.say_value(process)?;
    } else {
        table(std::slice::from_ref(process), relative_time::now()).say(output, "");
    }
    Ok(ExitCode::SUCCESS)
}

fn start(started: &StartArgs, output: &Output) -> Result<ExitCode, Failure> {
    let request = started.request(|key| std::env::var(key).ok())?;
    let process = started.server.with(async |client| {
        let sandbox = client.sandbox(started.sandbox);
        sandbox.start_process(&request).await.map_err(cannot("start the process"))
    })?;
    if process.ports_open == Some(false) {
        output.note("not all ports of --wait-for-port listen");
    }
    if started.wait {
        return ended(&process, started.json, output);
    }
    if started.json {
        output.say_value(&process)?;
    } else {
        output.say(&process.name);
        output.remark(&format!("process {} is {}", process.pid, process.status.as_str()));
    }
    Ok(if process.ports_open == Some(false) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn wait(waited: &WaitArgs, output: &Output) -> Result<ExitCode, Failure> {
    let ProcessArgs { sandbox, process, json, server } = &waited.of;
    let process = server.with(async |client| {
        let waiting = client.sandbox(*sandbox);
        let process = waiting.wait_process(process, waited.timeout).await;
        process.map_err(cannot("wait for the process"))
    })?;
    ended(&process, *json, output)
}

/// Prints what a process wrote, and ends as it did.
fn ended(process: &Process, json: bool, output: &Output) -> Result<ExitCode, Failure> {
    if json {
        output.say_value(process)?;
    } else if let Some(written) = &process.output {
        let bytes = |text: Option<&str>, base64: Option<&str>| {
            let read = base64.map(wire::from_base64).transpose();
            let read = read.map_err(|error| Failure::new("cannot read output", error))?;
            Ok::<_, Failure>(read.unwrap_or_else(|| text.unwrap_or_default().as_bytes().to_vec()))
        };
        output.say_bytes(&bytes(written.stdout.as_deref(), written.stdout_base64.as_deref())?);
        let errors = bytes(written.stderr.as_deref(), written.stderr_base64.as_deref())?;
        // A closed stderr is not a failure.
        let _ = write_all(io::stderr().as_fd(), &errors);
    }
    Ok(code_of(process, output))
}

/// The exit code of a process as ours.
fn code_of(process: &Process, output: &Output) -> ExitCode {
    if let Some(code) = process.exit_code {
        return ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX));
    }
    output.note(&format!("process {} is {}", process.pid, process.status.as_str()));
    ExitCode::FAILURE
}

fn feed(fed: &StdinArgs) -> Result<ExitCode, Failure> {
    let ProcessArgs { sandbox, process, server, .. } = &fed.of;
    let bytes =
        read_input(INPUT_BYTES_MAX).map_err(|error| Failure::new("cannot read input", error))?;
    server.with(async |client| {
        let sandbox = client.sandbox(*sandbox);
        let failed = cannot("write to the process");
        if !bytes.is_empty() {
            sandbox.write_stdin(process, bytes).await.map_err(&failed)?;
        }
        if !fed.keep_open {
            sandbox.close_stdin(process).await.map_err(&failed)?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn list(listed: &ListArgs, output: &Output) -> Result<ExitCode, Failure> {
    let processes = listed.server.with(async |client| {
        let sandbox = client.sandbox(listed.sandbox);
        let (mut all, mut before) = (Vec::new(), None);
        while all.len() < listed.limit {
            let limit = Some(PAGE.min((listed.limit - all.len()).min(PAGE as usize) as u32));
            let ListArgs { running, observe, .. } = *listed;
            let filter = ProcessFilter { before, limit, running, observe };
            let page = sandbox.processes(filter).await.map_err(cannot("list processes"))?;
            all.extend(page.processes);
            match page.next {
                Some(next) => before = Some(next),
                None => break,
            }
        }
        Ok(all)
    })?;
    if listed.json {
        output.say_json(&serde_json::json!({ "processes": processes }));
    } else {
        table(&processes, relative_time::now()).say(output, "there are no processes");
    }
    Ok(ExitCode::SUCCESS)
}

fn table(processes: &[Process], now: Time) -> Table {
    let mut table =
        Table::new(&["PID", "NAME", "STATUS", "EXIT", "STARTED", "KEEP-ALIVE", "COMMAND"]);
    for process in processes {
        let exit = match (&process.signal, process.exit_code) {
            (Some(signal), _) => signal.clone(),
            (None, Some(code)) => code.to_string(),
            (None, None) => "-".to_owned(),
        };
        table.row([
            process.pid.to_string(),
            process.name.clone(),
            process.status.as_str().to_owned(),
            exit,
            relative_time::ago(process.started_at, now),
            if process.keep_alive { "yes" } else { "-" }.to_owned(),
            process.command.clone(),
        ]);
    }
    table
}

/// Writes output of a process to our stdout or stderr; false if it is closed.
fn write_output(bytes: &[u8], to_stderr: bool) -> Result<bool, Failure> {
    let written = block_in_place(|| {
        if to_stderr {
            write_all(io::stderr().as_fd(), bytes)
        } else {
            write_all(io::stdout().as_fd(), bytes)
        }
    });
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new("cannot write output", error)),
    }
}
