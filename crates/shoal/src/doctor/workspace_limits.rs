//! Which limits of workspaces on disk work in the data directory. The check tries them there, in a
//! directory that it removes afterwards; it touches nothing else.

use std::path::Path;

use workspaces::{HardBy, HardLimit};

use super::host_checks::Finding;
use crate::workspace_placement::{nearest_existing, probe_limits_in};

const NAME: &str = "hard limit of workspaces";
const REMEDY: &str = "put the data directory on btrfs with quotas, or on ext4 or xfs mounted with \
                      prjquota; or install e2fsprogs and run shoal with sudo";

/// The finding for a data directory.
pub(super) fn finding(data_dir: &Path) -> Finding {
    let place = nearest_existing(data_dir);
    match probe_limits_in(&place) {
        Ok(found) => finding_for(&place, &found),
        Err(error) => {
            let why = format!("the doctor cannot try limits in {}: {error}", place.display());
            Finding::no(NAME, why, "run the doctor as the user who runs the server")
        }
    }
}

fn finding_for(place: &Path, found: &HardLimit) -> Finding {
    let reasons = found.reasons();
    let Some(by) = found.by else {
        let why = format!(
            "only soft limits work in {}: {reasons}; a template with `limit = \"hard\"` is refused, \
             unless it has limits.best_effort",
            place.display()
        );
        return Finding::no(NAME, why, REMEDY);
    };
    let others = match &*reasons {
        "" => String::new(),
        reasons => format!("; other ways do not work: {reasons}"),
    };
    let (by, users) = (by.as_str(), users(by));
    Finding::yes(NAME, format!("by {by} in {}, {users}{others}", place.display()))
}

/// The templates that get the hard limit.
const fn users(by: HardBy) -> &'static str {
    match by {
        HardBy::Btrfs | HardBy::ProjectQuota => {
            "for all templates but those with `limit = \"soft\"`"
        }
        HardBy::Image => {
            "only for templates with `limit = \"hard\"`; the default is a soft limit here"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::host_checks::State;
    use super::*;

    #[test]
    fn workspace_limits_are_reported_with_their_reason() {
        let place = Path::new("/data");
        let not = vec![(HardBy::Btrfs, "quotas are off".to_owned())];
        let by = |by| finding_for(place, &HardLimit { by, not: not.clone() });
        let image = by(Some(HardBy::Image));
        assert_eq!((image.state, image.remedy.is_some()), (State::Yes, false));
        assert!(image.why.contains("images") && image.why.contains("quotas are off"));
        assert!(image.why.contains("the default is a soft limit"), "{image:?}");
        let none = by(None);
        assert_eq!((none.state, none.needed), (State::No, false));
        assert!(none.why.contains("soft") && none.remedy.is_some(), "{none:?}");
        let best = finding_for(place, &HardLimit { by: Some(HardBy::Btrfs), not: Vec::new() });
        let why =
            "by btrfs subvolumes in /data, for all templates but those with `limit = \"soft\"`";
        assert_eq!(best.why, why);
    }
}
