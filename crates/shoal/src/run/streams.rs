//! Connects our three streams to those of a program. A closed output closes the program's output,
//! as a pipe would. A slow reader slows down the program and nothing else.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use runtime::{ByteReader, ByteWriter, RuntimeError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, block_in_place};

const CHUNK_BYTES: usize = 256 * 1024;
const INPUT_CHUNK_BYTES: usize = 64 * 1024;
/// Chunks of input that wait for the program.
const INPUT_PIECES: usize = 2;

/// One of our two outputs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ours {
    Stdout,
    Stderr,
}

/// Sends our standard input until it ends, or until the program closes its input.
pub(crate) fn feed(mut input: ByteWriter) {
    let (pieces, mut arriving) = mpsc::channel::<Vec<u8>>(INPUT_PIECES);
    // In a thread, because a read from a terminal blocks. The thread ends with this process.
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; INPUT_CHUNK_BYTES];
        while let Ok(length @ 1..) = stdin.read(&mut buffer) {
            if pieces.blocking_send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    tasks::spawn(async move {
        while let Some(piece) = arriving.recv().await {
            if input.write_all(&piece).await.is_err() {
                return;
            }
        }
        // A program that closed its input need not see the end.
        let _ = input.shutdown().await;
    });
}

/// Writes the output of a program to ours, until it ends.
pub(crate) fn drain(
    output: Option<ByteReader>,
    ours: Ours,
) -> JoinHandle<Result<(), RuntimeError>> {
    tasks::spawn(async move {
        let Some(mut output) = output else { return Ok(()) };
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let length = output.read(&mut buffer).await;
            let length = length.map_err(|error| RuntimeError::from_io("read output", error))?;
            if length == 0 {
                return Ok(());
            }
            let written = block_in_place(|| match ours {
                Ours::Stdout => write_all(io::stdout().as_fd(), &buffer[..length]),
                Ours::Stderr => write_all(io::stderr().as_fd(), &buffer[..length]),
            });
            match written {
                Ok(()) => {}
                // Our output is closed: dropping our end closes the program's output.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(RuntimeError::system("write output", &error)),
            }
        }
    })
}

/// Writes all bytes, also to a non-blocking descriptor. Blocks.
pub(crate) fn write_all(descriptor: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(descriptor, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(rustix::io::Errno::INTR) => {}
            // Another process made the file non-blocking.
            Err(rustix::io::Errno::AGAIN) => {
                let mut ready =
                    [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::OUT)];
                rustix::event::poll(&mut ready, None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads our whole standard input.
pub(crate) fn read_input(limit_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(limit_bytes + 1).read_to_end(&mut bytes)?;
    if read as u64 > limit_bytes {
        return Err(io::Error::other(format!("standard input has more than {limit_bytes} bytes")));
    }
    Ok(bytes)
}
