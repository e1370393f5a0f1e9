//! Makes links. The target of a symbolic link is only stored, never followed. An existing file of
//! the same name is not touched.

use guest_protocol::message::{Fault, FaultCode, MAX_LINK_TARGET_BYTES};
use rustix::fs::{AtFlags, linkat, symlinkat};

use super::super::fault::{fault, refused};
use super::{make_all, open_directory_of, split};

/// Makes a symbolic link, and missing directories above it.
pub(in super::super) fn make_link(path: &str, target: &str) -> Result<(), Fault> {
    // Checked first, so that a refusal leaves no directories.
    if target.is_empty() || target.len() > MAX_LINK_TARGET_BYTES || target.contains('\0') {
        let cause = format!(
            "the target of a link must have 1 to {MAX_LINK_TARGET_BYTES} bytes, none of them 0"
        );
        return Err(fault(FaultCode::Invalid, cause));
    }
    make_all(split(path)?.0)?;
    let (directory, name) = open_directory_of(path)?;
    symlinkat(target, &directory, name).map_err(|errno| refused(errno, path))
}

/// Gives a file another name (a hard link).
pub(in super::super) fn link_file(path: &str, target: &str) -> Result<(), Fault> {
    let (target_directory, target_name) = open_directory_of(target)?;
    make_all(split(path)?.0)?;
    let (directory, name) = open_directory_of(path)?;
    linkat(&target_directory, target_name, &directory, name, AtFlags::empty())
        .map_err(|errno| refused(errno, &format!("cannot make {path} a hard link to {target}")))
}
