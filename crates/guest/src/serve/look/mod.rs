//! A look: a query about the sandbox (find, search, watch, sockets), run in a copy of the guest
//! with the user of programs. It sees what programs may see, may take long, and is killed like any
//! program. The guest itself must never wait for one, nor do any of this in its own process.

mod directory_watch;
mod find;
mod record_writer;
mod search;
mod sockets;
mod walk;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};

use guest_protocol::look::{Look, Sighting};
use guest_protocol::message::{Fault, FaultCode, Pipe};
use jail::sys::fork::fork_as;
use rustix::event::epoll::EventFlags;
use rustix::process::getpid;

use super::Settings;
use super::fault::{fault, refused};
use super::io::Io;
use super::program::{Lanes, Program};
use super::ready::{Part, Source};
use super::start::{absolute, open_outward};
use record_writer::RecordWriter;

/// Takes the descriptor of a look that is not started.
pub(super) fn drop_passed(output: Pipe, io: &mut Io) {
    if output == Pipe::Passed {
        drop(io.connection.take_descriptor());
    }
}

/// Starts one. `children` are the programs of the host.
pub(super) fn start(
    channel: u32,
    look: &Look,
    output: Pipe,
    settings: &Settings,
    children: &BTreeMap<i32, u32>,
    io: &mut Io,
) -> Result<Program, Fault> {
    let mut own: Option<OwnedFd> = None;
    let mut outward = None;
    match output {
        Pipe::Null => return Err(fault(FaultCode::Invalid, "a look needs an output")),
        Pipe::Passed => own = io.connection.take_descriptor(),
        Pipe::Lane => {
            let made =
                open_outward(&mut own).map_err(|errno| refused(errno, "cannot start the query"))?;
            io.watch(&made.descriptor, Source::Part(channel, Part::Stdout), EventFlags::IN)
                .map_err(|errno| refused(errno, "cannot start the query"))?;
            outward = Some(made);
        }
    }
    let Some(own) = own else {
        return Err(fault(FaultCode::Invalid, "the request came without its descriptor"));
    };
    let guest = getpid().as_raw_nonzero().get();
    let pid = fork_as(settings.workload, own.as_fd(), |output| {
        let mut records = RecordWriter::new(output);
        let outcome = carry_out(look, settings, guest, children, &mut records);
        if let Err(fault) = outcome {
            records.write(&Sighting::Failed(fault));
        }
        records.flush();
    })
    .map_err(|errno| refused(errno, "cannot start another process"))?;
    let lanes = Lanes { input: None, stdout: outward, stderr: None, main: None };
    let passed = [Some(own).filter(|_| output == Pipe::Passed), None];
    Ok(Program::new(channel, pid, lanes, false, passed).unlisted())
}

fn carry_out(
    look: &Look,
    settings: &Settings,
    guest: i32,
    children: &BTreeMap<i32, u32>,
    records: &mut RecordWriter,
) -> Result<(), Fault> {
    match look {
        Look::Find { path, which, kinds, max_depth, until } => {
            let path = absolute(&settings.workspace, path);
            find::find(&path, which, kinds, *max_depth, *until, records)
        }
        Look::Search { path, text, case_sensitive, which, until } => {
            let path = absolute(&settings.workspace, path);
            search::search(&path, text.as_bytes(), *case_sensitive, which, *until, records)
        }
        Look::Watch { path, recursive } => {
            let path = absolute(&settings.workspace, path);
            directory_watch::watch(&path, *recursive, records)
        }
        Look::Sockets { pid } => sockets::list(*pid, guest, children, records),
    }
}
