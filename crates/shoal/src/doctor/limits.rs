//! Which limits of workspaces on disk work where data is kept. It is tried there, in a directory
//! that is gone afterwards; nothing that is there already is touched.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use workspaces::{HardLimit, probe};

use super::judge::Finding;
use crate::config::{self, Overrides, Surroundings};

const NAME: &str = "hard limit of workspaces";
const REMEDY: &str = "templates with a workspace on disk need `limit = \"soft\"` or \
                      limits.best_effort; or put the data directory on btrfs with quotas, or on \
                      ext4 or xfs mounted with prjquota; or run it with sudo, with e2fsprogs";

/// What works in the data directory of the server that would be started now.
pub(super) fn finding() -> Finding {
    let around = Surroundings::read();
    let data_dir = match config::load(&Overrides::default(), &around) {
        Ok(effective) => effective.config.server.data_dir,
        Err(_) => around.data_dir(),
    };
    let place = nearest(&data_dir);
    match tried_in(&place) {
        Ok(found) => judge(&place, &found),
        Err(error) => {
            let why = format!("cannot be tried in {}: {error}", place.display());
            Finding::no(NAME, why, "run it as whoever runs the server")
        }
    }
}

fn judge(place: &Path, found: &HardLimit) -> Finding {
    let reasons = found.reasons();
    match found.by {
        Some(by) if reasons.is_empty() => {
            Finding::yes(NAME, format!("by {} in {}", by.as_str(), place.display()))
        }
        Some(by) => {
            let why = format!("by {} in {} ({reasons})", by.as_str(), place.display());
            Finding::yes(NAME, why)
        }
        None => {
            let why = format!("only soft ones in {}: {reasons}", place.display());
            Finding::no(NAME, why, REMEDY)
        }
    }
}

/// The data directory, or what is there of the way to it.
fn nearest(data_dir: &Path) -> PathBuf {
    data_dir.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn tried_in(place: &Path) -> io::Result<HardLimit> {
    let trial = place.join(format!(".shoal-doctor-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&trial)?;
    let found = probe(&trial);
    std::fs::remove_dir_all(&trial)?;
    found
}

#[cfg(test)]
mod tests {
    use super::super::judge::State;
    use super::*;
    use workspaces::HardBy;

    #[test]
    fn what_works_and_what_does_not_is_told_with_its_reason() {
        let place = Path::new("/data");
        let not = vec![(HardBy::Btrfs, "quotas are off".to_owned())];
        let by = |by| judge(place, &HardLimit { by, not: not.clone() });
        let image = by(Some(HardBy::Image));
        assert_eq!((image.state, image.remedy.is_some()), (State::Yes, false));
        assert!(image.why.contains("images") && image.why.contains("quotas are off"));
        let none = by(None);
        assert_eq!((none.state, none.needed), (State::No, false));
        assert!(none.why.contains("soft") && none.remedy.is_some(), "{none:?}");
        let best = judge(place, &HardLimit { by: Some(HardBy::Btrfs), not: Vec::new() });
        assert_eq!(best.why, "by btrfs subvolumes in /data");
    }

    #[test]
    fn a_trial_leaves_nothing() {
        let place = std::env::temp_dir().join(format!("doctor-limits-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        assert_eq!(nearest(&place.join("not/there")), place);
        tried_in(&place).unwrap();
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
        std::fs::remove_dir(&place).unwrap();
    }
}
