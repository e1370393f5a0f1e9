//! What is bound to a sandbox late.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{ClaimSettings, NetworkPolicy, SecretName, SecretUse, WorkspaceId};

use super::stage::{new_instance, run, said, shell};
use super::{CaseResult, Stage, code_of};
use crate::error::RuntimeErrorCode;
use crate::exec::ExecSpec;
use crate::spec::{LaunchSpec, WorkspaceSource};

fn env(pairs: &[(&str, &str)]) -> ClaimSettings {
    let env: BTreeMap<_, _> =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ClaimSettings { env, ..ClaimSettings::default() }
}

pub(super) async fn environments_are_bound_late(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    assert_eq!(said(&*sandbox, "printenv HOME").await, "/workspace\n");
    assert!(!shell(&*sandbox, "printenv TOKEN").await.exit.success());
    sandbox.claim(&env(&[("TOKEN", "a b=c"), ("MORE", "1")]), None).await.expect("claimed");
    assert_eq!(said(&*sandbox, "printenv TOKEN").await, "a b=c\n");
    assert_eq!(said(&*sandbox, "printenv HOME").await, "/workspace\n");
    let spec = ExecSpec::argv(["printenv", "TOKEN"]).env("TOKEN", "mine");
    assert_eq!(run(&*sandbox, spec).await.stdout, b"mine\n", "an exec's own value wins");
    sandbox.claim(&env(&[("TOKEN", "second")]), None).await.expect("claimed again");
    assert_eq!(said(&*sandbox, "printenv TOKEN").await, "second\n");
    assert!(!shell(&*sandbox, "printenv MORE").await.exit.success(), "the first claim is replaced");
    Ok(())
}

pub(super) async fn environments_are_bound_at_launch(stage: &Stage) -> CaseResult {
    let spec = LaunchSpec { settings: Some(Arc::new(env(&[("A", "1")]))), ..stage.spec() };
    let sandbox = stage.runtime.launch(spec).await.expect("launched");
    assert_eq!(said(&*sandbox, "printenv A").await, "1\n");
    Ok(())
}

pub(super) async fn unresolved_secrets_are_refused(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let secret = SecretName::new("DB").expect("it is a name");
    let used = SecretUse { secret, env: Some("DB".to_owned()), file: None, boundary: None };
    let secrets = ClaimSettings { secrets: vec![used], ..ClaimSettings::default() };
    assert_eq!(code_of(sandbox.claim(&secrets, None).await), RuntimeErrorCode::Unsupported);
    let network = ClaimSettings { network: Some(NetworkPolicy::Open), ..ClaimSettings::default() };
    assert_eq!(code_of(sandbox.claim(&network, None).await), RuntimeErrorCode::Unsupported);
    sandbox.inside().ping().await.expect("it is as it was");
    Ok(())
}

pub(super) async fn workspaces_are_attached_late(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    if !stage.runtime.capabilities().disk_workspaces {
        let claimed = sandbox.claim(&env(&[]), Some(WorkspaceId::from_u128(7))).await;
        assert_eq!(code_of(claimed), RuntimeErrorCode::Unsupported);
        return Ok(());
    }
    let Some(workspace) = stage.subject.make_workspace().await else {
        return Err("it has no workspaces on disk".to_owned());
    };
    sandbox.claim(&env(&[("A", "1")]), Some(workspace)).await.expect("claimed");
    assert_eq!(said(&*sandbox, "echo kept > file; printenv A").await, "1\n");
    sandbox.kill().await.expect("killed");
    let next = stage.launch().await;
    assert_eq!(code_of(next.inside().stat("/workspace/file").await), RuntimeErrorCode::NotFound);
    next.claim(&env(&[]), Some(workspace)).await.expect("claimed");
    assert_eq!(said(&*next, "cat /workspace/file").await, "kept\n");
    assert_eq!(next.inside().read_all("/workspace/file", 10).await.expect("read"), b"kept\n");
    next.inside().write_all("/workspace/more", b"x", None).await.expect("written");
    Ok(())
}

pub(super) async fn workspaces_outlive_sandboxes(stage: &Stage) -> CaseResult {
    if !stage.runtime.capabilities().disk_workspaces {
        let workspace = WorkspaceSource::Disk(WorkspaceId::from_u128(7));
        let launched = stage.runtime.launch(LaunchSpec { workspace, ..stage.spec() }).await;
        assert_eq!(code_of(launched), RuntimeErrorCode::Unsupported);
        return Ok(());
    }
    let Some(workspace) = stage.subject.make_workspace().await else {
        return Err("it has no workspaces on disk".to_owned());
    };
    let on_disk = LaunchSpec { workspace: WorkspaceSource::Disk(workspace), ..stage.spec() };
    let sandbox = stage.runtime.launch(on_disk).await.expect("launched");
    sandbox.inside().write_all("/workspace/a/b", b"kept", Some(0o600)).await.expect("written");
    let next = stage.runtime.recreate(sandbox, new_instance()).await.expect("recreated");
    assert_eq!(next.inside().read_all("/workspace/a/b", 10).await.expect("read"), b"kept");
    assert_eq!(next.inside().stat("/workspace/a/b").await.expect("there").mode, 0o600);
    Ok(())
}

pub(super) async fn workspaces_have_other_names(stage: &Stage) -> CaseResult {
    let aliases = vec!["app".to_owned(), "code".to_owned()];
    let launched = stage.runtime.launch(LaunchSpec { aliases, ..stage.spec() }).await;
    if !stage.runtime.capabilities().aliases {
        assert_eq!(code_of(launched), RuntimeErrorCode::Unsupported);
        return Ok(());
    }
    let sandbox = launched.expect("launched");
    said(&*sandbox, "echo one > /app/file").await;
    assert_eq!(sandbox.inside().read_all("/workspace/file", 9).await.expect("read"), b"one\n");
    sandbox.inside().write_all("/code/d/other", b"two", None).await.expect("written");
    assert_eq!(said(&*sandbox, "cat /workspace/d/other").await, "two");
    let inside = ExecSpec { cwd: Some("/app".to_owned()), ..ExecSpec::shell("cat file") };
    assert_eq!(run(&*sandbox, inside).await.stdout, b"one\n");
    let plain = stage.launch().await;
    assert_eq!(code_of(plain.inside().stat("/app").await), RuntimeErrorCode::NotFound);
    Ok(())
}
