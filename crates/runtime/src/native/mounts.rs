//! Mounts of host directories, translated for the launcher: it knows the directories that it got at
//! its start by their index, and must never get another host path.

use std::path::{Path, PathBuf};

use guest_protocol::launcher;
use model::Mount;

use super::launch::STEP;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// Translates mounts into indexes of the launcher's directories and paths beneath them.
pub(super) fn for_launcher(
    directories: &[PathBuf],
    mounts: &[Mount],
) -> Result<Vec<launcher::Mount>, RuntimeError> {
    let named = mounts.iter().enumerate().map(|(index, mount)| {
        name(directories, mount).map_err(|problem| {
            let cause = format!("mounts[{index}].{problem}");
            RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause)
        })
    });
    named.collect()
}

fn name(directories: &[PathBuf], mount: &Mount) -> Result<launcher::Mount, String> {
    if mount.docker_host_path.is_some() {
        return Err("docker_host_path: the native runtime has no Docker engine".to_owned());
    }
    let path = Path::new(&mount.host_path);
    let beneath = directories.iter().enumerate().filter_map(|(number, directory)| {
        path.strip_prefix(directory).ok().map(|rest| (number, rest))
    });
    let shortest = beneath.min_by_key(|(_, rest)| rest.components().count());
    let Some((number, rest)) = shortest else {
        let shown = &mount.host_path;
        return Err(format!("host_path: {shown} is beneath no directory that may be mounted"));
    };
    Ok(launcher::Mount {
        directory: u32::try_from(number).unwrap_or(u32::MAX),
        path: rest.to_string_lossy().into_owned(),
        at: mount.path.trim_start_matches('/').to_owned(),
        read_only: mount.read_only,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_paths_are_named_by_the_innermost_directory() {
        let directories = ["/srv", "/srv/data", "/data"].map(PathBuf::from);
        for (host_path, expected) in [
            ("/srv/data/x/y", Some((1, "x/y"))),
            ("/srv/data", Some((1, ""))),
            ("/srv/database", Some((0, "database"))),
            ("/data/x", Some((2, "x"))),
            ("/datax", None),
            ("/", None),
        ] {
            let mount = Mount {
                host_path: host_path.to_owned(),
                path: "/in/side".to_owned(),
                read_only: true,
                docker_host_path: None,
            };
            let named = name(&directories, &mount).ok();
            let found = named.as_ref().map(|named| (named.directory, named.path.as_str()));
            assert_eq!(found, expected, "{host_path}");
            assert!(named.is_none_or(|named| named.at == "in/side" && named.read_only));
            let elsewhere = Mount { docker_host_path: Some("/x".to_owned()), ..mount };
            assert!(name(&directories, &elsewhere).is_err());
        }
    }
}
