//! Records: the last state of each, and nothing else.

use model::record::{Journal, JournalEntry};

use super::fixtures::{
    changes, ended, name, pool, sandbox, sandbox_id, session, session_id, workspace_id,
};
use super::{RETENTION, Subject, loaded, reopened};
use crate::contract::{Batch, Loaded};

pub(super) async fn new_store_loads_nothing(on: &dyn Subject) {
    let store = on.open(RETENTION);
    assert_eq!(loaded(&*store).await, Loaded::default());
    store.commit(&Batch::default()).await.expect("nothing, written");
    assert_eq!(loaded(&*reopened(on, store).await).await, Loaded::default());
}

pub(super) async fn records_of_every_kind_are_stored(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let expected = Journal {
        pools: vec![pool(1, 1), pool(2, 2)],
        sandboxes: (0..64).map(|n| sandbox(n, n.into())).collect(),
        // The last is larger than a page of any database.
        sessions: (0..32).map(|n| session(n, n.into())).chain([session(32, 8 + 384)]).collect(),
        doomed_workspaces: vec![workspace_id(1), workspace_id(2)],
        ended: vec![ended(1, 1), ended(2, 6), ended(1, 7)],
    };
    let journal = expected.clone();
    let mut entries: Vec<JournalEntry> = Vec::new();
    entries.extend(journal.pools.into_iter().map(JournalEntry::PoolPut));
    // Not in the order in which they are loaded.
    entries.extend(journal.sandboxes.into_iter().rev().map(JournalEntry::SandboxPut));
    entries.extend(journal.sessions.into_iter().rev().map(JournalEntry::SessionPut));
    entries.extend(journal.doomed_workspaces.into_iter().rev().map(JournalEntry::WorkspaceDoomed));
    entries.extend(journal.ended.into_iter().map(JournalEntry::Ended));
    store.commit(&changes(entries)).await.expect("written");
    assert_eq!(loaded(&*store).await.journal, expected);
    assert_eq!(loaded(&*reopened(on, store).await).await.journal, expected);
}

pub(super) async fn records_have_their_last_state(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let put = |id, n| JournalEntry::SandboxPut(sandbox(id, n));
    store.commit(&changes([put(1, 1), put(2, 1), put(1, 2)])).await.expect("written");
    assert_eq!(loaded(&*store).await.journal.sandboxes, [sandbox(1, 2), sandbox(2, 1)]);
    let removed = JournalEntry::SandboxRemoved(sandbox_id(1));
    let again = [removed, put(2, 2), put(1, 3), put(2, 3)];
    store.commit(&changes(again)).await.expect("written");
    let expected = [sandbox(1, 3), sandbox(2, 3)];
    assert_eq!(loaded(&*store).await.journal.sandboxes, expected);
    assert_eq!(loaded(&*reopened(on, store).await).await.journal.sandboxes, expected);
}

pub(super) async fn records_that_were_removed_are_gone(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let put = [
        JournalEntry::PoolPut(pool(1, 1)),
        JournalEntry::SandboxPut(sandbox(1, 1)),
        JournalEntry::SessionPut(session(1, 1)),
        JournalEntry::WorkspaceDoomed(workspace_id(1)),
    ];
    let remove = [
        JournalEntry::PoolRemoved(name(1)),
        JournalEntry::SandboxRemoved(sandbox_id(1)),
        JournalEntry::SessionRemoved(session_id(1)),
        JournalEntry::WorkspaceDeleted(workspace_id(1)),
        // These never existed.
        JournalEntry::PoolRemoved(name(2)),
        JournalEntry::SandboxRemoved(sandbox_id(2)),
        JournalEntry::SessionRemoved(session_id(2)),
        JournalEntry::WorkspaceDeleted(workspace_id(2)),
    ];
    store.commit(&changes(put)).await.expect("written");
    let store = reopened(on, store).await;
    assert_ne!(loaded(&*store).await, Loaded::default());
    store.commit(&changes(remove)).await.expect("written");
    assert_eq!(loaded(&*store).await, Loaded::default());
    assert_eq!(loaded(&*reopened(on, store).await).await, Loaded::default());
}

pub(super) async fn records_put_and_removed_in_one_batch_never_existed(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let entries = [
        JournalEntry::SandboxPut(sandbox(1, 1)),
        JournalEntry::WorkspaceDoomed(workspace_id(1)),
        JournalEntry::SandboxRemoved(sandbox_id(1)),
        JournalEntry::WorkspaceDeleted(workspace_id(1)),
    ];
    store.commit(&changes(entries)).await.expect("written");
    assert_eq!(loaded(&*store).await, Loaded::default());
    assert_eq!(loaded(&*reopened(on, store).await).await, Loaded::default());
}

pub(super) async fn records_replace_others(on: &dyn Subject) {
    let mut store = on.open(RETENTION);
    let there = |from: u8| (from..from + 10).map(|id| sandbox(id, id.into())).collect::<Vec<_>>();
    let put = there(0).into_iter().map(JournalEntry::SandboxPut);
    store.commit(&changes(put.collect::<Vec<_>>())).await.expect("written");
    for gone in 0..100 {
        let come = JournalEntry::SandboxPut(sandbox(gone + 10, u32::from(gone) + 10));
        let go = JournalEntry::SandboxRemoved(sandbox_id(gone));
        let entries = if gone % 2 == 0 { [come, go] } else { [go, come] };
        store.commit(&changes(entries)).await.expect("written");
        assert_eq!(loaded(&*store).await.journal.sandboxes, there(gone + 1), "{gone}");
        if gone % 30 == 0 {
            store = reopened(on, store).await;
        }
    }
    assert_eq!(loaded(&*reopened(on, store).await).await.journal.sandboxes, there(100));
}
