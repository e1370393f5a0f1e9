//! What of the host is seen inside, in the words of the launcher: it knows the directories that it
//! was given at its start by their numbers, and no other path.

use std::path::{Path, PathBuf};

use guest_protocol::launcher;
use model::Mount;

use super::launch::STEP;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// Names mounts by the directories that the launcher has.
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
        return Err("docker_host_path: there is no Docker engine in this".to_owned());
    }
    let path = Path::new(&mount.host_path);
    let beneath = directories.iter().enumerate().filter_map(|(number, directory)| {
        path.strip_prefix(directory).ok().map(|rest| (number, rest))
    });
    let shortest = beneath.min_by_key(|(_, rest)| rest.components().count());
    let Some((number, rest)) = shortest else {
        let shown = &mount.host_path;
        return Err(format!("host_path: {shown} is in no directory that the launcher was given"));
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
    fn a_path_is_named_by_the_innermost_directory() {
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
