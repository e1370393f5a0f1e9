//! A link that is made. Where a symbolic one points is the affair of whoever follows it: here it is
//! only written down. Nothing that has its name already is touched.

use guest_protocol::message::{Fault, FaultCode, MAX_LINK_TARGET_BYTES};
use rustix::fs::{AtFlags, linkat, symlinkat};

use super::super::fault::{fault, refused};
use super::{make_all, open_directory_of, split};

/// Makes a link, and directories above it that are missing.
pub(in super::super) fn make_link(path: &str, target: &str) -> Result<(), Fault> {
    // Looked at first, so that a refusal leaves no directories.
    if target.is_empty() || target.len() > MAX_LINK_TARGET_BYTES || target.contains('\0') {
        let cause =
            format!("the target of a link has 1 to {MAX_LINK_TARGET_BYTES} bytes, none of them 0");
        return Err(fault(FaultCode::Invalid, cause));
    }
    make_all(split(path)?.0)?;
    let (directory, name) = open_directory_of(path)?;
    symlinkat(target, &directory, name).map_err(|errno| refused(errno, path))
}

/// Gives a file another name.
pub(in super::super) fn link_file(path: &str, target: &str) -> Result<(), Fault> {
    let (target_directory, target_name) = open_directory_of(target)?;
    make_all(split(path)?.0)?;
    let (directory, name) = open_directory_of(path)?;
    linkat(&target_directory, target_name, &directory, name, AtFlags::empty())
        .map_err(|errno| refused(errno, &format!("cannot name {target} {path} as well")))
}
