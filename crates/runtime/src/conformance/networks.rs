//! The network of a policy is made, changed and taken away from outside, whatever the sandbox does.

use std::net::{TcpListener, UdpSocket};

use model::NetworkPolicy;

use super::{CaseResult, Stage, code_of};
use crate::contract::NetworkSockets;
use crate::error::RuntimeErrorCode;
use crate::spec::NetworkAbility;

fn policy(rules: &[&str]) -> NetworkPolicy {
    let rules = rules.iter().map(|rule| rule.parse().expect("a rule"));
    NetworkPolicy::Allow(rules.collect())
}

/// Checks what was handed out, and closes it.
fn check(sockets: NetworkSockets, ability: NetworkAbility) {
    let NetworkSockets { connections, names } = sockets;
    let connections = TcpListener::from(connections);
    let waits = connections.accept().expect_err("no program has dialled").kind();
    assert_eq!(waits, std::io::ErrorKind::WouldBlock);
    assert_eq!(names.is_some(), ability == NetworkAbility::Transparent);
    if let Some(names) = names {
        let waits = UdpSocket::from(names).recv(&mut [0]).expect_err("no program has asked").kind();
        assert_eq!(waits, std::io::ErrorKind::WouldBlock);
    }
}

pub(super) async fn networks_are_armed_changed_and_disarmed(stage: &Stage) -> CaseResult {
    let ability = stage.runtime.capabilities().network;
    let sandbox = stage.launch().await;
    let first = policy(&["a.test", "10.0.0.0/8:5432"]);
    if ability == NetworkAbility::None {
        assert_eq!(code_of(sandbox.arm_network(&first).await), RuntimeErrorCode::Unsupported);
        assert_eq!(code_of(sandbox.change_network(&first).await), RuntimeErrorCode::Unsupported);
        assert_eq!(code_of(sandbox.refused_addresses().await), RuntimeErrorCode::Unsupported);
        assert_eq!(code_of(sandbox.disarm_network().await), RuntimeErrorCode::Unsupported);
        return Ok(());
    }
    sandbox.disarm_network().await.expect("there is nothing to take away");
    for _ in 0..3 {
        check(sandbox.arm_network(&first).await.expect("armed"), ability);
    }
    for other in [policy(&["10.1.2.3"]), NetworkPolicy::Open, NetworkPolicy::None, first.clone()] {
        sandbox.change_network(&other).await.expect("changed");
    }
    assert_eq!(sandbox.refused_addresses().await.expect("read"), []);
    for _ in 0..2 {
        sandbox.disarm_network().await.expect("disarmed");
    }
    check(sandbox.arm_network(&NetworkPolicy::Open).await.expect("armed again"), ability);
    sandbox.inside().ping().await.expect("it lives");
    Ok(())
}

pub(super) async fn networks_of_dead_sandboxes_are_refused(stage: &Stage) -> CaseResult {
    if stage.runtime.capabilities().network == NetworkAbility::None {
        return Ok(());
    }
    let sandbox = stage.launch().await;
    let armed = sandbox.arm_network(&NetworkPolicy::Open).await.expect("armed");
    sandbox.kill().await.expect("killed");
    drop(armed);
    let open = NetworkPolicy::Open;
    assert_eq!(code_of(sandbox.arm_network(&open).await), RuntimeErrorCode::SandboxGone);
    assert_eq!(code_of(sandbox.change_network(&open).await), RuntimeErrorCode::SandboxGone);
    assert_eq!(code_of(sandbox.refused_addresses().await), RuntimeErrorCode::SandboxGone);
    assert_eq!(code_of(sandbox.disarm_network().await), RuntimeErrorCode::SandboxGone);
    Ok(())
}
