//! What the kernel says, as something a caller can act on.

use guest_protocol::message::{Fault, FaultCode};
use rustix::io::Errno;

/// More of a message is of no use to anybody, and it must fit into a reply.
const MAX_MESSAGE_BYTES: usize = 2048;

/// A fault without a word of the kernel.
pub(super) fn fault(code: FaultCode, message: impl Into<String>) -> Fault {
    Fault { code, errno: 0, message: clipped(message.into()) }
}

/// A fault that the kernel gave the reason for. `what` could not be done.
pub(super) fn refused(errno: Errno, what: &str) -> Fault {
    refused_as(code_of(errno), errno, format!("{what}: {}", describe_errno(errno)))
}

/// A fault that the kernel gave the reason for, and that has better words than the kernel's.
pub(super) fn refused_as(code: FaultCode, errno: Errno, message: String) -> Fault {
    Fault { code, errno: errno.raw_os_error(), message: clipped(message) }
}

fn clipped(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        message.push_str("...");
    }
    message
}

fn code_of(errno: Errno) -> FaultCode {
    match errno {
        Errno::NOENT | Errno::SRCH | Errno::CONNREFUSED => FaultCode::NotFound,
        Errno::EXIST | Errno::NOTEMPTY => FaultCode::Exists,
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::BUSY | Errno::TXTBSY | Errno::LOOP => {
            FaultCode::Denied
        }
        Errno::ISDIR | Errno::NOTDIR | Errno::NXIO | Errno::NODEV => FaultCode::WrongKind,
        Errno::NOSPC
        | Errno::DQUOT
        | Errno::MFILE
        | Errno::NFILE
        | Errno::NOMEM
        | Errno::AGAIN
        | Errno::TOOBIG
        | Errno::FBIG
        | Errno::MLINK => FaultCode::Limit,
        Errno::INVAL | Errno::NAMETOOLONG | Errno::XDEV => FaultCode::Invalid,
        _ => FaultCode::System,
    }
}

/// The common ones in words; the C library's table of all of them would be most of this binary's text.
fn describe_errno(errno: Errno) -> String {
    let words = match errno {
        Errno::NOENT => "no such file or directory",
        Errno::EXIST => "it exists already",
        Errno::NOTEMPTY => "the directory is not empty",
        Errno::ACCESS | Errno::PERM => "not allowed",
        Errno::ROFS => "it is read-only",
        Errno::BUSY => "it is in use",
        Errno::TXTBSY => "it is being run",
        Errno::LOOP => "too many links, or one of a kind that is not followed",
        Errno::ISDIR => "it is a directory",
        Errno::NOTDIR => "it is not a directory",
        Errno::NXIO | Errno::NODEV => "it is not a file",
        Errno::NOSPC | Errno::DQUOT => "no space left",
        Errno::MFILE | Errno::NFILE => "too many descriptors are open",
        Errno::NOMEM => "no memory left",
        Errno::AGAIN => "too many processes, or a limit of another kind",
        Errno::TOOBIG => "arguments and environment are too long",
        Errno::FBIG => "the file would be too big",
        Errno::INVAL => "it is not valid",
        Errno::NAMETOOLONG => "the name is too long",
        Errno::XDEV => "the places are on different filesystems",
        Errno::NOEXEC => "it is not a program",
        Errno::CONNREFUSED => "nothing listens there",
        other => return format!("error {}", other.raw_os_error()),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_not_endless() {
        let fault = fault(FaultCode::Invalid, "ä".repeat(1 << 20));
        assert!(fault.message.len() < 2100 && fault.message.ends_with("ä..."));
        let fault = refused(Errno::NOENT, "/x");
        assert_eq!(fault.message, "/x: no such file or directory");
        assert_eq!((fault.code, fault.errno), (FaultCode::NotFound, 2));
    }
}
