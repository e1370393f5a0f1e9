//! The disk of a world: workspaces that are measured, rightly or late, and a disk that fills up and
//! has room again.

use kernel::{Event, Measured};

use crate::checks::{self, Judged};
use crate::world::World;

impl World {
    /// Somebody looks at the disk, or at one workspace on it.
    pub(crate) fn look_at_disk(&mut self) -> Judged {
        match self.choices.below(4) {
            0 | 1 => self.measure_workspace(),
            2 => self.tell_of_disk(false),
            _ => self.tell_of_disk(true),
        }
    }

    /// Any instance is measured, also one that is long on its way out: measuring takes its time.
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
                one.disk_told = true;
            }
        }
        let boots = self.boots;
        self.tell(Event::WorkspaceMeasured { instance: id, measured })?;
        // What is hidden may be shown at the next look.
        let must_end = over && !measured.hidden;
        if must_end && self.boots == boots { checks::disk::measured(self, id) } else { Ok(()) }
    }

    pub(crate) fn tell_of_disk(&mut self, short: bool) -> Judged {
        if short {
            self.coverage.count("disk", "short");
            // Any of them may be the one that has to go.
            for one in self.runtime.instances.values_mut() {
                one.disk_told = true;
            }
        }
        self.disk_short = short;
        let free_bytes = if short { 0 } else { u64::MAX };
        self.tell(Event::DiskMeasured { free_bytes })
    }
}
