//! A wiped sandbox is as good as a new one, and a proof checks that. Runtimes that recreate used
//! sandboxes skip these cases.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::template::Recycle;
use model::{ClaimSettings, NetworkPolicy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::stage::{MOST_POLLS, PATIENCE, cut, said, shell};
use super::{CaseResult, Stage, code_of};
use crate::contract::Sandbox;
use crate::error::RuntimeErrorCode;
use crate::exec::ExecSpec;
use crate::inside::WatchQuery;
use crate::spec::NetworkAbility;

/// A sandbox to be wiped; none where nothing is, which is asserted.
async fn wipeable(stage: &Stage) -> Option<Arc<dyn Sandbox>> {
    let sandbox = stage.launch().await;
    match stage.runtime.traits().recycle {
        Recycle::Wipe => Some(sandbox),
        Recycle::Recreate => {
            assert_eq!(code_of(sandbox.wipe().await), RuntimeErrorCode::Unsupported);
            assert_eq!(code_of(sandbox.prove().await), RuntimeErrorCode::Unsupported);
            sandbox.inside().ping().await.expect("it is as it was");
            None
        }
    }
}

/// Wipes a sandbox; gives it as its next user knows it.
async fn wiped(stage: &Stage, sandbox: &Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
    sandbox.wipe().await.expect("wiped");
    present(stage, sandbox)
}

/// A sandbox as its present user knows it.
fn present(stage: &Stage, sandbox: &Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
    stage.runtime.sandbox(sandbox.instance()).expect("it is there")
}

/// What is where programs can write.
async fn names(sandbox: &dyn Sandbox) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    for place in ["/workspace", "/tmp"] {
        let page = sandbox.inside().list_files(place, None, 1_000).await.expect("listed");
        names.extend(page.entries.into_iter().map(|entry| entry.name));
    }
    names
}

pub(super) async fn wiped_sandbox_is_like_a_new_one(stage: &Stage) -> CaseResult {
    let Some(mut sandbox) = wipeable(stage).await else { return Ok(()) };
    let fresh = names(&*sandbox).await;
    let mut env = BTreeMap::new();
    env.insert("TOKEN".to_owned(), "secret".to_owned());
    let settings = ClaimSettings { env, ..ClaimSettings::default() };
    for round in 0..3 {
        sandbox.claim(&settings, None).await.expect("claimed");
        assert_eq!(said(&*sandbox, "echo one > file; printenv TOKEN").await, "secret\n");
        said(&*sandbox, "echo one > /tmp/file").await;
        sandbox
            .inside()
            .write_all("/workspace/a/b/c", b"secret", Some(0o400))
            .await
            .expect("written");
        sandbox = wiped(stage, &sandbox).await;
        sandbox.prove().await.expect("proven");
        assert_eq!(names(&*sandbox).await, fresh, "after round {round}");
        assert!(
            !shell(&*sandbox, "printenv TOKEN").await.exit.success(),
            "the environment is unbound"
        );
        assert_eq!(
            code_of(sandbox.inside().stat("/workspace/a").await),
            RuntimeErrorCode::NotFound
        );
        assert_eq!(sandbox.inside().processes().await.expect("listed"), Vec::<u32>::new());
    }
    sandbox.inside().write_all("/workspace/mine", b"x", None).await.expect("it can be used");
    Ok(())
}

pub(super) async fn wipe_ends_every_program_of_the_use(stage: &Stage) -> CaseResult {
    let Some(sandbox) = wipeable(stage).await else { return Ok(()) };
    let mut watched = sandbox.inside().exec(ExecSpec::shell("sleep 1000")).await.expect("started");
    let background = "sleep 1000 & echo on";
    assert_eq!(said(&*sandbox, background).await, "on\n");
    let sandbox = wiped(stage, &sandbox).await;
    let ended = timeout(PATIENCE, watched.wait()).await.expect("in time");
    assert!(ended.is_err() || !ended.is_ok_and(|exit| exit.success()), "it was ended");
    sandbox.prove().await.expect("proven");
    assert_eq!(sandbox.inside().processes().await.expect("listed"), Vec::<u32>::new());
    assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    Ok(())
}

/// A handle of a use that has ended is refused.
async fn refuses_everything(last: &dyn Sandbox) {
    let gone = RuntimeErrorCode::SandboxGone;
    assert_eq!(code_of(last.inside().ping().await), gone);
    assert_eq!(code_of(last.claim(&ClaimSettings::default(), None).await), gone);
    assert_eq!(code_of(last.inside().stat("/workspace").await), gone);
    assert_eq!(code_of(last.inside().make_directory("/workspace/late", false).await), gone);
    assert_eq!(code_of(last.inside().write_all("/workspace/late", b"x", None).await), gone);
    // Where there are no networks, it is refused for that.
    assert!(last.arm_network(&NetworkPolicy::Open).await.is_err());
    let started = last.inside().exec(ExecSpec::shell("echo late > late")).await;
    if let Ok(mut process) = started {
        assert_eq!(code_of(process.wait().await), gone);
    }
}

pub(super) async fn wipe_cuts_old_handles_off_from_the_next_use(stage: &Stage) -> CaseResult {
    let Some(sandbox) = wipeable(stage).await else { return Ok(()) };
    sandbox
        .inside()
        .write_all("/workspace/read", &vec![b'x'; 300_000], None)
        .await
        .expect("written");
    let mut writer = sandbox.inside().write_file("/workspace/late", None).await.expect("begun");
    writer.write_all(b"late").await.expect("written");
    let mut reader = sandbox.inside().read_file("/workspace/read", 0, None).await.expect("opened");
    let query = WatchQuery { path: "/workspace".to_owned(), recursive: true };
    let mut watch = sandbox.inside().watch(&query).await.expect("watched");
    let last = sandbox;
    let sandbox = wiped(stage, &last).await;
    sandbox.prove().await.expect("proven");
    refuses_everything(&*last).await;
    sandbox.prove().await.expect("nothing of it was done");
    assert!(writer.finish().await.is_err(), "a file of the use that has ended");
    let mut rest = Vec::new();
    // What had arrived may still be read.
    let read = timeout(PATIENCE, reader.read_to_end(&mut rest)).await.expect("in time");
    assert!(read.is_err() || rest.len() <= 300_000);
    sandbox.inside().write_all("/workspace/new", b"x", None).await.expect("written");
    // Earlier changes may still be reported, and then the watch ends.
    while let Ok(Some(change)) = timeout(PATIENCE, watch.next()).await.expect("the watch has ended")
    {
        assert!(!change.path.ends_with(b"/new"), "a watch sees the next use");
    }
    assert_eq!(code_of(sandbox.inside().stat("/workspace/late").await), RuntimeErrorCode::NotFound);
    Ok(())
}

pub(super) async fn a_proof_fails_if_anything_is_left(stage: &Stage) -> CaseResult {
    let Some(sandbox) = wipeable(stage).await else { return Ok(()) };
    let sandbox = wiped(stage, &sandbox).await;
    sandbox.prove().await.expect("proven");
    sandbox.inside().write_all("/workspace/left", b"x", None).await.expect("written");
    assert!(sandbox.prove().await.is_err(), "a file is left");
    let sandbox = wiped(stage, &sandbox).await;
    sandbox.prove().await.expect("proven");
    let mut left = sandbox.inside().exec(ExecSpec::shell("sleep 1000")).await.expect("started");
    assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    assert!(sandbox.prove().await.is_err(), "a program is left");
    sandbox.kill().await.expect("killed");
    assert!(left.wait().await.is_err());
    assert_eq!(code_of(sandbox.wipe().await), RuntimeErrorCode::SandboxGone);
    assert_eq!(code_of(sandbox.prove().await), RuntimeErrorCode::SandboxGone);
    Ok(())
}

pub(super) async fn a_wipe_that_is_given_up_is_not_proven(stage: &Stage) -> CaseResult {
    for polls in 1..MOST_POLLS {
        let Some(sandbox) = wipeable(stage).await else { return Ok(()) };
        shell(&*sandbox, "echo secret > file").await;
        let finished = cut(polls, sandbox.wipe()).await;
        if let Some(wiped) = finished {
            wiped.expect("wiped");
            present(stage, &sandbox).prove().await.expect("proven");
            return Ok(());
        }
        let sandbox = present(stage, &sandbox);
        assert!(sandbox.prove().await.is_err(), "after {polls} polls");
        timeout(PATIENCE, sandbox.kill()).await.expect("in time").expect("killed");
    }
    panic!("a wipe never comes to its end");
}

pub(super) async fn a_wipe_takes_the_network_away(stage: &Stage) -> CaseResult {
    let Some(mut sandbox) = wipeable(stage).await else { return Ok(()) };
    if stage.runtime.capabilities().network == NetworkAbility::None {
        return Ok(());
    }
    let armed = |sandbox: Arc<dyn Sandbox>| async move {
        sandbox.arm_network(&NetworkPolicy::Open).await.expect("armed")
    };
    for _ in 0..3 {
        drop(armed(Arc::clone(&sandbox)).await);
        sandbox = wiped(stage, &sandbox).await;
        sandbox.prove().await.expect("nothing of it is left");
        assert_eq!(sandbox.refused_addresses().await.unwrap_or_default(), []);
    }
    let last = armed(Arc::clone(&sandbox)).await;
    assert!(sandbox.prove().await.is_err(), "it is armed");
    drop(last);
    Ok(())
}
