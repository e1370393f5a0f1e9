//! What the engine says, in the words of the API.

use std::collections::BTreeMap;

use engine::{Caller, CheckoutPath, Entry, EntryKind, SandboxView};
use model::record::Owner;
use model::{KeyId, Role};
use wire::{FileEntry, FileKind, Sandbox, Time};

pub(crate) fn sandbox(view: &SandboxView, caller: Caller) -> Sandbox {
    let (lease, session) = match view.owner {
        Owner::Nobody => (None, None),
        Owner::Lease(lease) => (Some(lease), None),
        Owner::Session(session) => (None, Some(session)),
    };
    let is_shown = caller.role == Role::Admin && view.tenant != KeyId::NIL;
    Sandbox {
        id: view.id,
        template: view.template.clone(),
        state: view.state,
        frozen: view.frozen,
        generation: view.generation,
        lease,
        session,
        labels: view.claim.as_ref().map_or_else(BTreeMap::new, |claim| claim.labels.clone()),
        uses: view.uses,
        created_at: view.created_at.into(),
        last_used_at: view.last_used_at.into(),
        expires_at: view.expires_at.map(Time::from),
        ending: view.ending,
        key: is_shown.then_some(view.tenant),
    }
}

pub(crate) const fn path(path: CheckoutPath) -> wire::CheckoutPath {
    match path {
        CheckoutPath::Fast => wire::CheckoutPath::Fast,
        CheckoutPath::Overflow => wire::CheckoutPath::Overflow,
        CheckoutPath::Blocked => wire::CheckoutPath::Blocked,
    }
}

pub(crate) fn file(entry: &Entry) -> FileEntry {
    let kind = match entry.kind {
        EntryKind::File => FileKind::File,
        EntryKind::Directory => FileKind::Directory,
        EntryKind::Link => FileKind::Link,
        EntryKind::Other => FileKind::Other,
    };
    FileEntry::new(
        &entry.name,
        kind,
        entry.size,
        entry.mode,
        Time(entry.modified_ms),
        entry.target.as_deref(),
    )
}
