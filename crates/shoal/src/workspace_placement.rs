//! Where a server would keep workspaces on this machine, found out without a server: for
//! `shoal config` and `shoal doctor`. It decides nothing: `model::placing` has the rule.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use jail::machine::Machine;
use model::template::RuntimeKind;
use model::{HardLimits, Placed, Template, placed};
use workspaces::HardLimit;

/// What this machine offers for workspaces.
#[derive(Debug)]
pub(crate) struct WorkspacePlacement {
    /// What enforces hard limits in the data directory, or why that cannot be tried.
    hard: Result<HardLimits, String>,
    /// Why native sandboxes cannot have a workspace there, if they cannot.
    native: Result<(), String>,
}

impl WorkspacePlacement {
    /// Looks at the machine and tries limits in the data directory. It starts no sandbox.
    pub(crate) fn probe(data_dir: &Path) -> Self {
        let place = nearest_existing(data_dir);
        let hard = probe_limits_in(&place).map(|found| found.kept()).map_err(|error| {
            format!("{}: {error}; run it as the user who runs the server", place.display())
        });
        let machine = Machine::probe();
        let native = if machine.is_root && !machine.idmapped_mounts {
            Err("mounts cannot show other owners, which needs Linux 5.12".to_owned())
        } else {
            Ok(())
        };
        Self { hard, native }
    }

    /// The same, after a sandbox with its workspace on disk was tried.
    pub(crate) fn with_trial(self, native: Result<(), String>) -> Self {
        Self { native: self.native.and(native), ..self }
    }

    /// Where the workspaces of a template are, or why that is not known.
    pub(crate) fn placed(&self, template: &Template) -> Result<Placed, String> {
        let found = match template.runtime {
            RuntimeKind::Docker
            | RuntimeKind::Runc
            | RuntimeKind::Runsc
            | RuntimeKind::Crun
            | RuntimeKind::Youki => {
                placed(template, Err(&model::placing::in_memory_only(template.runtime)))
            }
            RuntimeKind::Native | RuntimeKind::Fake => {
                let hard = self.hard.as_ref().map_err(Clone::clone)?;
                let native = self.native.as_ref().map_err(String::as_str);
                placed(template, native.map(|()| hard))
            }
        };
        found.map_err(|refusal| refusal.to_string())
    }
}

/// The data directory, or the nearest directory above it that exists.
pub(crate) fn nearest_existing(data_dir: &Path) -> PathBuf {
    data_dir.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

/// Tries limits in a directory that is removed afterwards.
pub(crate) fn probe_limits_in(place: &Path) -> io::Result<HardLimit> {
    let trial = place.join(format!(".shoal-trial-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&trial)?;
    let found = workspaces::probe(&trial);
    std::fs::remove_dir_all(&trial)?;
    found
}

#[cfg(test)]
mod tests {
    use model::TemplateName;
    use model::template::WorkspaceKind;

    use super::*;

    #[test]
    fn limit_probe_leaves_nothing() {
        let place = std::env::temp_dir().join(format!("placing-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        assert_eq!(nearest_existing(&place.join("not/there")), place);
        probe_limits_in(&place).unwrap();
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
        std::fs::remove_dir(&place).unwrap();
    }

    #[test]
    fn placement_of_containers_is_memory_and_an_untried_one_is_not_guessed() {
        const WHY: &str = "there is no such thing";
        let mut template = Template::named(TemplateName::new("t").unwrap());
        let placement = WorkspacePlacement { hard: Err(WHY.to_owned()), native: Ok(()) };
        assert_eq!(placement.placed(&template), Err(WHY.to_owned()));
        template.runtime = RuntimeKind::Docker;
        let found = placement.placed(&template).unwrap();
        assert_eq!(found.kind, WorkspaceKind::Memory);
        assert!(found.why.unwrap().contains("docker"));
        template.runtime = RuntimeKind::Native;
        let placement =
            WorkspacePlacement { hard: Ok(HardLimits::FileSystem("x")), native: Ok(()) };
        assert_eq!(placement.placed(&template).unwrap().kind, WorkspaceKind::Disk);
        let found = placement.with_trial(Err(WHY.to_owned())).placed(&template).unwrap();
        assert_eq!(found.kind, WorkspaceKind::Memory, "a trial counts");
    }
}
