//! Copies bytes between two connections, in both directions, until both have ended. Large streams pass
//! through pipes, inside of the kernel. It must never hold a buffer for a connection on which nothing
//! moves, and never hold more than one buffer for one that does not read.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown, recv};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// What one read takes at most.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// A stream of which so much comes at once gets a pipe. Smaller pieces are cheaper to copy.
const PIPE_FROM: usize = 16 << 10;
const PIPE_BYTES: usize = 256 << 10;
/// The most pipes of a process.
const PIPES_MAX: usize = 128;
/// The most pipes that wait for use.
const PIPES_KEPT: usize = 32;
/// After so many pieces in a row, others have their turn.
const PIECES_IN_A_ROW: u32 = 8;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER_BYTES]);
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the sandbox.
    Out,
    /// To the sandbox.
    In,
}

/// Counts bytes, and says how long to pause after them; an error ends the connection.
pub(crate) trait Meter {
    fn moved(&self, direction: Direction, bytes: usize) -> io::Result<Duration>;
}

impl<M: Meter> Meter for Arc<M> {
    fn moved(&self, direction: Direction, bytes: usize) -> io::Result<Duration> {
        (**self).moved(direction, bytes)
    }
}

/// What one attempt to read brought.
pub(crate) enum Piece {
    End,
    Nothing,
    Bytes(usize),
}

/// The pipes of a process.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    state: Mutex<PipesState>,
}

#[derive(Debug, Default)]
struct PipesState {
    used: usize,
    free: Vec<(OwnedFd, OwnedFd)>,
}

/// A pipe in use. It goes back when it is dropped, unless bytes are in it.
struct Lease<'a> {
    pipes: &'a Pipes,
    ends: Option<(OwnedFd, OwnedFd)>,
    filled: usize,
}

impl Pipes {
    fn take(&self) -> Option<Lease<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.used >= PIPES_MAX {
            return None;
        }
        let ends = state.free.pop().or_else(new_pipe)?;
        state.used += 1;
        Some(Lease { pipes: self, ends: Some(ends), filled: 0 })
    }
}

fn new_pipe() -> Option<(OwnedFd, OwnedFd)> {
    let ends = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
    // A user may only have so much of it: a small pipe works too.
    let _ = fcntl_setpipe_size(&ends.1, PIPE_BYTES);
    Some(ends)
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut state = self.pipes.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used -= 1;
        if let Some(ends) = self.ends.take()
            && self.filled == 0
            && state.free.len() < PIPES_KEPT
        {
            state.free.push(ends);
        }
    }
}

/// Copies both ways. An end of one direction passes on, and the other direction goes on.
pub(crate) async fn relay(
    client: &TcpStream,
    host: &TcpStream,
    pipes: &Arc<Pipes>,
    meter: &impl Meter,
) -> io::Result<()> {
    tokio::try_join!(
        pump(client, host, pipes, meter, Direction::Out),
        pump(host, client, pipes, meter, Direction::In),
    )?;
    Ok(())
}

/// Copies one way until the end, and passes that on.
pub(crate) async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    pipes: &Pipes,
    meter: &impl Meter,
    direction: Direction,
) -> io::Result<()> {
    let mut at_once = 0;
    let mut row = 0;
    loop {
        from.readable().await?;
        let pipe = if at_once >= PIPE_FROM { pipes.take() } else { None };
        at_once = 0;
        let last = match pipe {
            Some(mut pipe) => through(&mut pipe, from, to, meter, direction, &mut at_once).await?,
            None => copy(from, to, meter, direction).await?,
        };
        match last {
            Piece::End => break,
            Piece::Nothing => row = 0,
            Piece::Bytes(count) => {
                at_once = count;
                rest_after(&mut row).await;
            }
        }
    }
    // The other side may have left already.
    let _ = rustix::net::shutdown(to, Shutdown::Write);
    Ok(())
}

pub(crate) async fn rest_after(row: &mut u32) {
    *row += 1;
    if *row >= PIECES_IN_A_ROW {
        *row = 0;
        tokio::task::yield_now().await;
    }
}

/// One piece, through the buffer that all connections share. What does not fit on the other side is
/// copied, and nothing more is read until it is gone.
async fn copy(
    from: &TcpStream,
    to: &TcpStream,
    meter: &impl Meter,
    direction: Direction,
) -> io::Result<Piece> {
    let mut rest = Vec::new();
    let piece = BUFFER.with_borrow_mut(|buffer| {
        let piece = read_now(from, buffer)?;
        if let Piece::Bytes(count) = piece {
            let written = match to.try_write(&buffer[..count]) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            };
            rest.extend_from_slice(&buffer[written..count]);
        }
        Ok(piece)
    })?;
    write_all(to, &rest).await?;
    if let Piece::Bytes(count) = piece {
        pause(meter.moved(direction, count)?).await;
    }
    Ok(piece)
}

/// Reads what is there. A piece that does not fill the buffer is the last for now: the next wait is for
/// what comes later, without another look in vain.
fn read_now(from: &TcpStream, buffer: &mut [u8]) -> io::Result<Piece> {
    let mut piece = Piece::Nothing;
    let tried = from.try_io(Interest::READABLE, || {
        let (count, _) = recv(from, &mut *buffer, RecvFlags::DONTWAIT)?;
        piece = if count == 0 { Piece::End } else { Piece::Bytes(count) };
        let is_last = (1..buffer.len()).contains(&count);
        if is_last { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match tried {
        Ok(()) => Ok(piece),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(piece),
        Err(error) => Err(error),
    }
}

/// Waits for bytes and appends them.
pub(crate) async fn read_more(from: &TcpStream, into: &mut Vec<u8>) -> io::Result<Piece> {
    loop {
        from.readable().await?;
        let piece = BUFFER.with_borrow_mut(|buffer| {
            let piece = read_now(from, buffer)?;
            if let Piece::Bytes(count) = piece {
                into.extend_from_slice(&buffer[..count]);
            }
            Ok::<_, io::Error>(piece)
        })?;
        if !matches!(piece, Piece::Nothing) {
            return Ok(piece);
        }
    }
}

/// Writes all of it.
pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(crate) async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// Until there is nothing to read for the moment: then the pipe is given back. `moved` grows by what has
/// passed.
async fn through(
    pipe: &mut Lease<'_>,
    from: &TcpStream,
    to: &TcpStream,
    meter: &impl Meter,
    direction: Direction,
    moved: &mut usize,
) -> io::Result<Piece> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let mut row = 0;
    loop {
        let Some((out_of, into)) = &pipe.ends else { return Ok(Piece::Nothing) };
        let read = from
            .try_io(Interest::READABLE, || Ok(splice(from, None, into, None, PIPE_BYTES, flags)?));
        let count = match read {
            Ok(0) => return Ok(Piece::End),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Piece::Nothing),
            Err(error) => return Err(error),
        };
        pipe.filled = count;
        *moved += count;
        while pipe.filled > 0 {
            to.writable().await?;
            let written = to.try_io(Interest::WRITABLE, || {
                Ok(splice(out_of, None, to, None, pipe.filled, flags)?)
            });
            match written {
                Ok(count) => pipe.filled -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        pause(meter.moved(direction, count)?).await;
        rest_after(&mut row).await;
    }
}
