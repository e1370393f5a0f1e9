//! The disk of a world: workspaces that are measured, correctly or late, and a disk that becomes
//! full and has room again.

use kernel::{Event, Measured};
use model::WorkspaceId;

use crate::checks::{self, Judged};
use crate::world::World;

impl World {
    /// Measures the disk or one workspace, or loses files in an accident.
    pub(crate) fn look_at_disk(&mut self) -> Judged {
        match self.choices.below(14) {
            12 | 13 => self.measure_kept_files(),
            0..4 => self.measure_workspace(),
            4 | 5 => self.report_disk(false),
            6 | 7 => self.report_disk(true),
            _ => {
                self.have_an_accident();
                Ok(())
            }
        }
    }

    /// Files of a cold sandbox are lost in an accident.
    fn have_an_accident(&mut self) {
        let used = |id| self.runtime.instances.values().any(|one| one.workspace == id);
        let cold: Vec<_> =
            self.runtime.workspaces.keys().copied().filter(|id| !used(*id)).collect();
        if let Some(lost) = self.choices.pick(&cold) {
            self.lose_workspace(lost);
        }
    }

    pub(crate) fn lose_workspace(&mut self, id: WorkspaceId) {
        self.coverage.count("faults", "files_lost");
        self.trace.note(self.step, self.now, || format!("{id:?} is lost"));
        self.runtime.workspaces.remove(&id);
        self.watch.vanished.insert(id);
    }

    /// Files of sleeping sessions are measured.
    fn measure_kept_files(&mut self) -> Judged {
        for workspace in self.kernel.unmeasured_files(2) {
            let bytes = u64::from(1 + self.choices.below(200)) << 20;
            self.notify(Event::FilesMeasured { workspace, bytes })?;
        }
        Ok(())
    }

    /// Any instance is measured, also one that is ending: a measurement takes time.
    fn measure_workspace(&mut self) -> Judged {
        let index = self.choices.below(self.runtime.instances.len() as u32) as usize;
        let Some(id) = self.runtime.instances.keys().nth(index).copied() else { return Ok(()) };
        let small = Measured { bytes: 1 << 20, files: 10, hidden: false };
        let (measured, over) = match self.choices.below(5) {
            0 => (small, false),
            1 => (Measured { bytes: 400 << 20, ..small }, false),
            2 => (Measured { bytes: (512 << 20) + 1, ..small }, true),
            3 => (Measured { files: u64::MAX, ..small }, true),
            _ => (Measured { hidden: true, ..small }, true),
        };
        if over {
            self.coverage.count("disk", "too_much");
            if let Some(one) = self.runtime.instances.get_mut(&id) {
                one.disk_reported = true;
            }
        }
        let boots = self.boots;
        self.notify(Event::WorkspaceMeasured { instance: id, measured })?;
        // A hidden part may be measurable next time.
        let must_end = over && !measured.hidden;
        if must_end && self.boots == boots {
            checks::disk_limits::measured(self, id)
        } else {
            Ok(())
        }
    }

    pub(crate) fn report_disk(&mut self, short: bool) -> Judged {
        if short {
            self.coverage.count("disk", "short");
            // Any of them may be chosen to end.
            for one in self.runtime.instances.values_mut() {
                one.disk_reported = true;
            }
        }
        self.disk_short = short;
        let free_bytes = if short { 0 } else { u64::MAX };
        self.notify(Event::DiskMeasured { free_bytes })
    }
}
