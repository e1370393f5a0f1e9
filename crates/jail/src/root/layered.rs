//! A root made of the layers of an image, or of the tree of a directory. Our own layer lies on top.
//! It hides whatever the other layers have at the paths that every sandbox has of its own, links
//! included, so the contents of an image never decide where we mount.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::AtFlags;
use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, statat,
};
use rustix::mount::MountAttrFlags;
use rustix::process::chdir;

use super::copy::write_file;
use super::host::skeleton;
use super::layers::{devices, layer};
use super::own_files::link_own_files;
use super::{Builder, Built, copy_of, memory, mount_on};
use crate::etc;
use crate::plan::USER;
use crate::sys::mount::{Properties, set_properties};

/// As many layers as surely have paths that fit.
pub const LAYERS_AT_MOST: usize = 64;

/// The name of our own layer.
const OURS: &str = "s";

/// The most bytes read of a file that we add a line to.
const ACCOUNTS_AT_MOST: u64 = 1 << 20;

/// Builds it in a directory of the launcher's own root. `layers` are opened directories, lowest
/// first.
pub fn build_from_layers(
    layers: &[OwnedFd],
    directory: &str,
    builder: Builder,
) -> io::Result<Built> {
    if layers.is_empty() || layers.len() > LAYERS_AT_MOST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let place = |name: &str| -> io::Result<String> {
        let at = format!("{directory}/{name}");
        mkdirat(CWD, at.as_str(), Mode::from_raw_mode(0o755))?;
        Ok(at)
    };
    let mut names = Vec::with_capacity(layers.len() + 1);
    for (number, layer) in layers.iter().enumerate() {
        let copy = copy_of(layer, "", false)?;
        let properties = Properties { read_only: true, no_devices: true, ..Properties::default() };
        set_properties(copy.as_fd(), properties)?;
        let name = number.to_string();
        mount_on(copy, CWD, place(&name)?)?;
        names.push(name);
    }
    let ours = memory(&[("size", "4m"), ("mode", "755")], MountAttrFlags::empty())?;
    let at = place(OURS)?;
    mount_on(&ours, CWD, &at)?;
    let ours = openat(CWD, at.as_str(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Read through copies on which devices do not work: opening a device may be an attack.
    let safe = names
        .iter()
        .map(|name| {
            let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
            Ok(openat(CWD, format!("{directory}/{name}"), flags, Mode::empty())?)
        })
        .collect::<io::Result<Vec<_>>>()?;
    fill_over_layers(ours.as_fd(), &safe)?;
    link_own_files(ours.as_fd(), merged(directory, &names, &safe)?.as_fd())?;
    set_properties(ours.as_fd(), Properties { read_only: true, ..Properties::default() })?;
    names.push(OURS.to_owned());
    names.reverse();
    Ok(Built { directory: directory.to_owned(), layers: names, parts: vec![devices(builder)] })
}

/// The layers as programs would see them without ours.
fn merged(directory: &str, names: &[String], layers: &[OwnedFd]) -> io::Result<OwnedFd> {
    if let [only] = layers {
        return only.try_clone();
    }
    let lower: Vec<&str> = names.iter().rev().map(String::as_str).collect();
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    // Layer paths are relative, because they must be short.
    chdir(directory)?;
    let merged = layer(&lower.join(":"), read_only);
    chdir("/")?;
    merged
}

/// Fills an empty directory with our own layer over these layers, lowest first.
pub fn fill_over_layers(ours: BorrowedFd<'_>, layers: &[OwnedFd]) -> io::Result<()> {
    skeleton(ours, etc::OWN_DIRECTORIES)?;
    for (name, contents) in etc::written() {
        let contents = match name {
            "etc/passwd" | "etc/group" => with_user(found_in(layers, name)?, &contents),
            "etc/hosts" | "etc/resolv.conf" => contents,
            // The file of the image is as good as ours.
            _ => continue,
        };
        write_file(ours, name, contents.as_bytes(), 0o644)?;
    }
    Ok(())
}

/// The contents of a file as the layers show it; `None` if it is missing or not a small file.
fn found_in(layers: &[OwnedFd], name: &str) -> io::Result<Option<String>> {
    for layer in layers.iter().rev() {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let Ok(found) = statat(layer, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        // Anything but a file hides the layers below: the mark of a removed file is a device, and
        // opening a device may be an attack.
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let flags =
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Ok(file) = openat2(layer, name, flags, Mode::empty(), resolve) else {
            return Ok(None);
        };
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let mut text = Vec::new();
        std::fs::File::from(file).take(ACCOUNTS_AT_MOST).read_to_end(&mut text)?;
        return Ok(String::from_utf8(text).ok());
    }
    Ok(None)
}

/// The users or groups of the image, plus the user of programs if it is missing.
fn with_user(theirs: Option<String>, ours: &str) -> String {
    let Some(mut theirs) = theirs else { return ours.to_owned() };
    let user = USER.to_string();
    let has = |line: &&str| line.split(':').nth(2) == Some(user.as_str());
    if theirs.lines().any(|line| has(&line)) {
        return theirs;
    }
    if !theirs.is_empty() && !theirs.ends_with('\n') {
        theirs.push('\n');
    }
    theirs.extend(ours.lines().find(has).map(|line| format!("{line}\n")));
    theirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_programs_has_a_name_in_every_root() {
        let ours = "root:x:0:0::/:\nagent:x:1000:1000::/workspace:/bin/sh\n";
        let cases = [
            (None, ours),
            (Some("root:x:0:0::/:"), "root:x:0:0::/:\nagent:x:1000:1000::/workspace:/bin/sh\n"),
            (
                Some("node:x:1000:1000::/home/node:/bin/sh\n"),
                "node:x:1000:1000::/home/node:/bin/sh\n",
            ),
            (Some(""), "agent:x:1000:1000::/workspace:/bin/sh\n"),
        ];
        for (theirs, expected) in cases {
            assert_eq!(with_user(theirs.map(str::to_owned), ours), expected, "{theirs:?}");
        }
    }
}
