//! Sandboxes by id: visible to their key, and once ended, refused with the reason.

use kernel::{Event, Reply, SandboxView};
use model::why::{Alive, Ended, Why};
use model::{ErrorCode, Refusal, SandboxId, SandboxState};

use crate::Engine;
use crate::boxed;
use crate::core::unavailable;
use crate::keys::Caller;

impl Engine {
    /// A sandbox that exists.
    pub fn sandbox(&self, caller: Caller, id: SandboxId) -> Result<SandboxView, Refusal> {
        self.check_sandbox(caller, id)?;
        let now = self.now();
        self.core.read(|kernel| match kernel.sandbox(id) {
            Some(view) => Ok(view),
            None => match kernel.why(now, id) {
                Some(Why::Ended(ended)) => Err(Refusal::sandbox_ended(&ended)),
                Some(Why::Alive(_)) | None => Err(unknown(id)),
            },
        })
    }

    /// The id of a sandbox in the engine of its runtime, where operators know it.
    pub fn container_id(&self, view: &SandboxView) -> Option<String> {
        self.core.runtimes.container_id(view.runtime, view.instance?)
    }

    /// Why a sandbox ended of which only the store has a tombstone.
    pub(crate) async fn ended_long_ago(&self, caller: Caller, id: SandboxId) -> Option<Refusal> {
        let ended = self.core.store.ended(id).await.ok().flatten()?;
        caller.sees(ended.tenant).then(|| Refusal::sandbox_ended(&ended))
    }

    /// All sandboxes that the caller may see, by id.
    pub fn sandboxes(&self, caller: Caller) -> Vec<SandboxView> {
        let mut all = self.core.read(kernel::Kernel::sandboxes);
        all.retain(|view| caller.sees(view.tenant));
        all.sort_by_key(|view| view.id);
        all
    }

    /// Why a sandbox is in its state, or why it ended.
    #[boxed]
    pub async fn why(&self, caller: Caller, id: SandboxId) -> Result<Why, Refusal> {
        let now = self.now();
        match self.core.read(|kernel| kernel.why(now, id)) {
            Some(Why::Alive(mut alive)) if caller.sees(alive.tenant) => {
                self.add_last_end(&mut alive).await?;
                Ok(Why::Alive(alive))
            }
            Some(Why::Ended(ended)) if caller.sees(ended.tenant) => Ok(Why::Ended(ended)),
            Some(_) => Err(unknown(id)),
            None => match self.stored_end(id).await? {
                Some(ended) if caller.sees(ended.tenant) => Ok(Why::Ended(ended)),
                Some(_) | None => Err(unknown(id)),
            },
        }
    }

    /// Adds to a cold sandbox how its last instance ended, if only the store still knows that.
    async fn add_last_end(&self, alive: &mut Alive) -> Result<(), Refusal> {
        if alive.state == SandboxState::Cold && alive.last_end.is_none() {
            let same_owner = |ended: &Ended| ended.tenant == alive.tenant;
            alive.last_end = self.stored_end(alive.sandbox).await?.filter(same_owner);
        }
        Ok(())
    }

    async fn stored_end(&self, id: SandboxId) -> Result<Option<Ended>, Refusal> {
        self.core.store.ended(id).await.map_err(|error| unavailable(&error.to_string()))
    }

    /// Ends a sandbox, whatever it is doing; done when it is gone.
    #[boxed]
    pub async fn delete_sandbox(&self, caller: Caller, id: SandboxId) -> Result<(), Refusal> {
        self.check_sandbox(caller, id)?;
        let request = self.core.request();
        let event = Event::DeleteRequested { request, sandbox: id };
        self.core.ask(request, event).await.map(|_| ())
    }

    /// Freezes a sandbox until it is used again.
    #[boxed]
    pub async fn freeze(&self, caller: Caller, id: SandboxId) -> Result<SandboxView, Refusal> {
        self.check_sandbox(caller, id)?;
        let request = self.core.request();
        self.core.ask(request, Event::FreezeRequested { request, sandbox: id }).await?;
        self.sandbox(caller, id)
    }

    /// Thaws a sandbox.
    #[boxed]
    pub async fn thaw(&self, caller: Caller, id: SandboxId) -> Result<SandboxView, Refusal> {
        self.check_sandbox(caller, id)?;
        let request = self.core.request();
        self.core.ask(request, Event::ThawRequested { request, sandbox: id }).await?;
        self.sandbox(caller, id)
    }

    /// What belongs to another key does not exist.
    pub fn check_sandbox(&self, caller: Caller, id: SandboxId) -> Result<(), Refusal> {
        match self.core.read(|kernel| kernel.tenant_of_sandbox(id)) {
            Some(tenant) if caller.sees(tenant) => Ok(()),
            Some(_) | None => Err(unknown(id)),
        }
    }
}

fn unknown(id: SandboxId) -> Refusal {
    Refusal::new(ErrorCode::SandboxUnknown, format!("no sandbox {id} is known"))
}

/// The kernel gave an answer of the wrong kind.
pub(crate) fn unexpected(reply: &Reply) -> Refusal {
    Refusal::new(
        ErrorCode::Internal,
        format!("internal error: the kernel gave an unexpected answer: {reply:?}"),
    )
}
