//! Turns errors of the kernel into faults that a caller can act on.

use guest_protocol::message::{Fault, FaultCode};
use rustix::io::Errno;

/// A longer message helps no reader, and it must fit into a reply.
const MAX_MESSAGE_BYTES: usize = 2048;

/// A fault without an error number.
pub(super) fn fault(code: FaultCode, message: impl Into<String>) -> Fault {
    Fault { code, errno: 0, message: clipped(message.into()) }
}

/// A fault with the kernel's reason. `what` could not be done.
pub(super) fn refused(errno: Errno, what: &str) -> Fault {
    refused_as(code_of(errno), errno, format!("{what}: {}", describe_errno(errno)))
}

/// A fault with the kernel's error number and a message of our own.
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

/// The common errors as text; the C library's table of all errors would be most of this binary's
/// text.
fn describe_errno(errno: Errno) -> String {
    let words = match errno {
        Errno::NOENT => "no such file or directory",
        Errno::EXIST => "already exists",
        Errno::NOTEMPTY => "the directory is not empty",
        Errno::ACCESS | Errno::PERM => "permission denied",
        Errno::ROFS => "the file system is read-only",
        Errno::BUSY => "the file is in use",
        Errno::TXTBSY => "the program is running",
        Errno::LOOP => "too many links, or a link that is not followed",
        Errno::ISDIR => "is a directory",
        Errno::NOTDIR => "is not a directory",
        Errno::NXIO | Errno::NODEV => "is not a file",
        Errno::NOSPC | Errno::DQUOT => "no space left",
        Errno::MFILE | Errno::NFILE => "too many descriptors are open",
        Errno::NOMEM => "no memory left",
        Errno::AGAIN => "too many processes, or a limit of another kind",
        Errno::TOOBIG => "arguments and environment are too long",
        Errno::FBIG => "the file would be too big",
        Errno::INVAL => "the argument is not valid",
        Errno::NAMETOOLONG => "the name is too long",
        Errno::XDEV => "the paths are on different file systems",
        Errno::NOEXEC => "is not a program",
        Errno::CONNREFUSED => "nothing listens there",
        other => return format!("error {}", other.raw_os_error()),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_messages_are_bounded() {
        let fault = fault(FaultCode::Invalid, "ä".repeat(1 << 20));
        assert!(fault.message.len() < 2100 && fault.message.ends_with("ä..."));
        let fault = refused(Errno::NOENT, "/x");
        assert_eq!(fault.message, "/x: no such file or directory");
        assert_eq!((fault.code, fault.errno), (FaultCode::NotFound, 2));
    }
}
