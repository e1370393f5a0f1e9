//! Deletion of a sandbox with its files. The caller gets its answer when the sandbox is gone.

use model::{EndCause, ErrorCode, Refusal, RequestId, SandboxId};

use crate::Kernel;
use crate::entry::{AfterEnd, EntryIx, Firmness, Termination};
use crate::reply::Reply;
use crate::request::WaitingFor;

impl Kernel {
    /// A caller deletes a sandbox.
    pub(crate) fn delete_requested(
        &mut self,
        request: RequestId,
        sandbox: SandboxId,
    ) -> Result<Reply, Refusal> {
        let Some(entry) = self.entries.by_id(sandbox) else {
            return match self.tombstones.of_sandbox(sandbox) {
                Some(_) => Ok(Reply::Gone),
                None => Err(sandbox_unknown(sandbox)),
            };
        };
        if self.entries[entry].is_live() {
            self.await_deletion(request, entry)?;
            self.end(entry, EndCause::Deleted, AfterEnd::Gone, Firmness::Now);
            Ok(Reply::Pending)
        } else if !self.entries[entry].ops.is_free() && !self.entries[entry].is_archiving() {
            // Its files are being copied. It is removed when the copy has ended, done or failed.
            self.await_deletion(request, entry)?;
            self.entries[entry].termination = Some(Box::new(Termination::now(EndCause::Deleted)));
            self.mark(entry);
            self.settle(entry);
            Ok(Reply::Pending)
        } else {
            self.lose_files(entry, EndCause::Deleted.reason());
            self.remove_entry(entry, EndCause::Deleted, None, None);
            Ok(Reply::Gone)
        }
    }

    fn await_deletion(&mut self, request: RequestId, entry: EntryIx) -> Result<(), Refusal> {
        Self::refuse_when_crowded(self.entries[entry].waiting())?;
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait_until(request, deadline, WaitingFor::Delete { entry });
        self.entries[entry].rare_mut().waiting.push(req);
        Ok(())
    }
}

pub(crate) fn sandbox_unknown(sandbox: SandboxId) -> Refusal {
    Refusal::new(ErrorCode::SandboxUnknown, format!("no sandbox {sandbox} is known"))
}
