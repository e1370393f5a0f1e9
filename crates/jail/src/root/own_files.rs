//! Files of `/etc` that are not the same in every sandbox: the names of hosts, and the certificates
//! that programs trust. In the root they are links into the memory of each sandbox, which may change
//! there while it runs. No link of a root is followed, and what a link of ours hides is kept beside
//! it. Roots of containers must not have them: nothing would be where they lead.

use std::io::{self, Read as _};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, chmodat, chownat, fstat, mkdirat, openat2,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::copy::write_file;
use crate::etc;

/// A larger file is no file of certificates.
const BYTES_AT_MOST: u64 = 1 << 20;

/// Makes the links in our own layer. `seen` is the root as it is without that layer; it may be the
/// layer itself.
pub(super) fn link_own_files(ours: BorrowedFd<'_>, seen: BorrowedFd<'_>) -> io::Result<()> {
    link(ours, etc::HOSTS, &format!("/{}", etc::OWN_HOSTS))?;
    mkdirat(ours, etc::KEPT, Mode::from_raw_mode(0o755))?;
    for trusted in etc::TRUSTED {
        let kept = format!("{}/{}", etc::KEPT, trusted.name);
        let mut is_kept = false;
        for place in trusted.places {
            let Some(contents) = contents_of(seen, place)? else { continue };
            if !is_kept {
                write_file(ours, &kept, &contents, 0o444)?;
                is_kept = true;
            }
            make_parents(ours, seen, place)?;
            link(ours, place, &format!("/{}/{}", etc::OWN, trusted.name))?;
        }
    }
    Ok(())
}

fn link(ours: BorrowedFd<'_>, place: &str, target: &str) -> io::Result<()> {
    match unlinkat(ours, place, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(symlinkat(target, ours, place)?),
        Err(error) => Err(error.into()),
    }
}

/// The contents of a file that all users may read; `None` for everything else. Opening anything but
/// a file may be an attack, so it is looked at before.
fn contents_of(seen: BorrowedFd<'_>, place: &str) -> io::Result<Option<Vec<u8>>> {
    let open = |flags: OFlags| -> Result<OwnedFd, Errno> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(seen, place, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty(), resolve)
    };
    let Ok(found) = open(OFlags::PATH) else { return Ok(None) };
    let found = fstat(&found)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || found.st_mode & 0o004 == 0 || found.st_size.cast_unsigned() > BYTES_AT_MOST {
        return Ok(None);
    }
    let file = open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let mut contents = Vec::new();
    std::fs::File::from(file).take(BYTES_AT_MOST).read_to_end(&mut contents)?;
    Ok(Some(contents))
}

/// The directories above a place, as they are in the root: the topmost layer decides how they appear.
fn make_parents(ours: BorrowedFd<'_>, seen: BorrowedFd<'_>, place: &str) -> io::Result<()> {
    for (at, _) in place.match_indices('/') {
        let directory = &place[..at];
        match mkdirat(ours, directory, Mode::from_raw_mode(0o755)) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(error) => return Err(error.into()),
        }
        let theirs = statat(seen, directory, AtFlags::SYMLINK_NOFOLLOW)?;
        let owner = (Uid::from_raw(theirs.st_uid), Gid::from_raw(theirs.st_gid));
        // Without root, the owner cannot be set; all users may enter the directory as before.
        let _ = chownat(ours, directory, Some(owner.0), Some(owner.1), AtFlags::empty());
        chmodat(ours, directory, Mode::from_raw_mode(theirs.st_mode & 0o7777), AtFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::PathBuf;

    use super::*;

    /// Our own layer, and a root beneath it.
    fn place(name: &str) -> (PathBuf, PathBuf) {
        let place = std::env::temp_dir().join(format!("jail-own-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        for directory in ["ours/etc", "ours/run", "root/etc/ssl/certs", "root/etc/pki"] {
            fs::create_dir_all(place.join(directory)).unwrap();
        }
        (place.join("ours"), place.join("root"))
    }

    fn link_all(ours: &PathBuf, root: &PathBuf) {
        let (ours, root) = (fs::File::open(ours).unwrap(), fs::File::open(root).unwrap());
        link_own_files(ours.as_fd(), root.as_fd()).unwrap();
    }

    #[test]
    fn trusted_certificates_of_a_root_become_links_and_are_kept() {
        let (ours, root) = place("kept");
        let bundle = "etc/ssl/certs/ca-certificates.crt";
        fs::write(root.join(bundle), "roots").unwrap();
        fs::set_permissions(root.join("etc/ssl"), fs::Permissions::from_mode(0o711)).unwrap();
        symlink("certs/ca-certificates.crt", root.join("etc/ssl/cert.pem")).unwrap();
        link_all(&ours, &root);
        let target = |path: &str| fs::read_link(ours.join(path)).unwrap();
        assert_eq!(target(bundle), PathBuf::from("/run/shoal/trusted.pem"));
        assert_eq!(target("etc/hosts"), PathBuf::from("/run/shoal/hosts"));
        assert_eq!(fs::read_to_string(ours.join("run/trusted/trusted.pem")).unwrap(), "roots");
        let mode = fs::metadata(ours.join("etc/ssl")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o711, "the directory appears as before");
        assert!(!ours.join("etc/ssl/cert.pem").is_symlink(), "a link of the root leads to it");
        assert!(!ours.join("run/trusted/trusted.jks").exists(), "there is no store of Java");
        fs::remove_dir_all(ours.parent().unwrap()).unwrap();
    }

    #[test]
    fn links_of_a_root_do_not_lead_our_links_anywhere() {
        let (ours, root) = place("links");
        let elsewhere = root.parent().unwrap().join("elsewhere");
        fs::create_dir_all(elsewhere.join("certs")).unwrap();
        fs::write(elsewhere.join("certs/ca-certificates.crt"), "of the host").unwrap();
        fs::remove_dir_all(root.join("etc/ssl")).unwrap();
        symlink(&elsewhere, root.join("etc/ssl")).unwrap();
        fs::create_dir_all(root.join("etc/pki/tls/certs")).unwrap();
        symlink("/etc/shadow", root.join("etc/pki/tls/certs/ca-bundle.crt")).unwrap();
        link_all(&ours, &root);
        assert!(!ours.join("etc/ssl").exists() && !ours.join("etc/pki").exists());
        assert_eq!(fs::read_dir(ours.join("run/trusted")).unwrap().count(), 0);
        fs::remove_dir_all(ours.parent().unwrap()).unwrap();
    }

    #[test]
    fn files_that_not_all_may_read_are_left_alone() {
        let (ours, root) = place("unread");
        let bundle = root.join("etc/ssl/certs/ca-certificates.crt");
        fs::write(&bundle, "roots").unwrap();
        fs::set_permissions(&bundle, fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(root.join("etc/ssl/cert.pem"), vec![0; 2 << 20]).unwrap();
        link_all(&ours, &root);
        assert!(!ours.join("etc/ssl").exists());
        fs::remove_dir_all(ours.parent().unwrap()).unwrap();
    }
}
