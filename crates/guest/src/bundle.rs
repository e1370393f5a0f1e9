//! The steps before an OCI runtime makes a container: filling our own layer of its root, mounting
//! its root where the runtime expects it, and making a network namespace with loopback only, which
//! not every runtime does. Each step is a process of its own, which ends or goes on as the runtime.
//! A server cannot do these steps itself, because its threads share one working directory and one
//! umask.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use jail::root::{BundleRoot, fill_from_host, fill_over_layers, mount_bundle_root};
use jail::socket_buffers;
use jail::sys::loopback;
use jail::sys::namespaces::{self, Namespace};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

/// The exit code of a failed step. The reason is on standard error.
const FAILED: u8 = 70;

/// Carries out the step that the arguments name.
pub(crate) fn main(arguments: &[&str]) -> ExitCode {
    rustix::process::umask(Mode::empty());
    let done = match arguments {
        ["fill", directory] => fill(directory, &[]),
        ["fill", directory, layers @ ..] => fill(directory, layers),
        ["start", rest @ ..] => start(rest).map(|never| match never {}),
        _ => return ExitCode::from(2),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("{}: {error}\n", arguments.first().unwrap_or(&""));
            // Without standard error there is no other place for the reason.
            let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
            ExitCode::from(FAILED)
        }
    }
}

/// Fills an empty directory with our own layer: over others, the lowest first, or over the host's.
fn fill(directory: &str, layers: &[&str]) -> io::Result<()> {
    let into = opened(directory)?;
    if layers.is_empty() {
        fill_from_host(opened("/")?.as_fd(), into.as_fd())?;
        return Ok(());
    }
    let layers = layers.iter().map(|path| opened(path)).collect::<io::Result<Vec<_>>>()?;
    fill_over_layers(into.as_fd(), &layers)
}

fn opened(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(CWD, path, flags, Mode::empty(), resolve)?)
}

/// A type without values.
enum Never {}

/// What is to be done before the runtime begins.
#[derive(Debug, Default, PartialEq, Eq)]
struct Preparation {
    root: BundleRoot,
    network: bool,
}

/// Mounts a root, makes a network if one is wanted, and goes on as the runtime.
fn start(arguments: &[&str]) -> io::Result<Never> {
    let (wanted, program) = parse(arguments).ok_or(io::ErrorKind::InvalidInput)?;
    let (path, rest) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    mount_bundle_root(&wanted.root)?;
    if wanted.network {
        namespaces::make(&[Namespace::Network])?;
        loopback::bring_up()?;
        socket_buffers::bound_here();
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Err(Command::new(path).args(rest).exec())
}

/// `BUNDLE [layer PATH]... [part AT PATH]... [without PATH]... [network] -- PROGRAM ARGUMENT...`
fn parse<'a>(arguments: &'a [&'a str]) -> Option<(Preparation, &'a [&'a str])> {
    let (bundle, mut rest) = arguments.split_first()?;
    let bundle = Path::new(bundle);
    let mut wanted = Preparation::default();
    wanted.root.gathered = bundle.join("layers");
    wanted.root.root = bundle.join("rootfs");
    loop {
        match rest {
            ["layer", path, after @ ..] => {
                wanted.root.layers.push(PathBuf::from(path));
                rest = after;
            }
            ["part", at, path, after @ ..] => {
                wanted.root.parts.push((PathBuf::from(at), PathBuf::from(path)));
                rest = after;
            }
            ["without", path, after @ ..] => {
                wanted.root.without.push(PathBuf::from(path));
                rest = after;
            }
            ["network", after @ ..] => {
                wanted.network = true;
                rest = after;
            }
            ["--", program @ ..] if !wanted.root.layers.is_empty() => {
                return Some((wanted, program));
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_arguments_are_parsed() {
        let line = "/b layer /top layer /own part usr /usr without /x network -- /bin/runc run";
        let words: Vec<&str> = line.split(' ').collect();
        let (wanted, program) = parse(&words).unwrap();
        let root = BundleRoot {
            gathered: "/b/layers".into(),
            root: "/b/rootfs".into(),
            layers: vec!["/top".into(), "/own".into()],
            parts: vec![("usr".into(), "/usr".into())],
            without: vec!["/x".into()],
        };
        let expected = Preparation { root, network: true };
        assert_eq!((wanted, program), (expected, &["/bin/runc", "run"][..]));
        for line in
            ["", "/b", "/b --", "/b -- /bin/runc", "/b layer", "/b layer /x", "/b what -- x"]
        {
            let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
            assert!(parse(&words).is_none(), "{line}");
        }
    }
}
