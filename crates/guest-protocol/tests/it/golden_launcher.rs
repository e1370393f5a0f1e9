//! The bytes of every message between a runtime and the launcher.

use guest_protocol::launcher::{
    AloneBecause, CgroupPaths, FromLauncher, LaunchRefusal, LauncherConfig, LauncherFeatures,
    Mount, NetworkMode, Point, RefusalCode, Root, SandboxLimits, Spec, ToLauncher, Users,
    Workspace,
};
use guest_protocol::message::ExitStatus;
use guest_protocol::network::{AddressRule, NetworkFeature, NetworkRequest, NetworkRules};

use crate::golden_messages::pin;

#[test]
fn configuration() {
    let config = |network| LauncherConfig {
        run: "r-1".into(),
        uid_base: 1_000_000,
        slots: 5000,
        spares: 8,
        network,
        directories: vec!["/r".into()],
        images: Some("/i".into()),
        workspaces: Some("/w".into()),
        lent: vec![([9; 16], "/l".into())],
        mounts: vec!["/m".into()],
        run_directory: "/run/x".into(),
        limits: true,
        user: None,
        subordinate_users: true,
        tables: true,
    };
    pin(
        &config(NetworkMode::Spare),
        "03722d31c0843d8827080001022f7201022f6901022f770109090909090909090909090909090909022f6c01022f6d062f72756e2f7801000101",
    );
    pin(
        &config(NetworkMode::Fresh),
        "03722d31c0843d8827080101022f7201022f6901022f770109090909090909090909090909090909022f6c01022f6d062f72756e2f7801000101",
    );
    pin(
        &config(NetworkMode::Shared),
        "03722d31c0843d8827080201022f7201022f6901022f770109090909090909090909090909090909022f6c01022f6d062f72756e2f7801000101",
    );
}

#[test]
fn to_the_launcher() {
    let spec = |root, workspace| Spec {
        instance: [7; 16],
        root,
        limits: SandboxLimits {
            memory_bytes: 512 << 20,
            cpu_milli: 1000,
            pids: 128,
            workspace_bytes: 1 << 20,
            scratch_bytes: 2 << 20,
        },
        workspace,
        mounts: Vec::new(),
    };
    pin(
        &ToLauncher::Launch { ticket: 1, spec: spec(Root::Host, Workspace::Memory) },
        "000107070707070707070707070707070707008080808002e8078001808040808080010000",
    );
    pin(
        &ToLauncher::Launch {
            ticket: 2,
            spec: spec(Root::Directory("d".into()), Workspace::Disk([9; 16])),
        },
        "0002070707070707070707070707070707070101648080808002e807800180804080808001010909090909090909090909090909090900",
    );
    let aliased = Root::Aliased { root: Box::new(Root::Host), names: vec!["app".into()] };
    pin(
        &ToLauncher::Launch { ticket: 1, spec: spec(aliased, Workspace::Memory) },
        "000107070707070707070707070707070707030001036170708080808002e8078001808040808080010000",
    );
    let points = vec![Point { at: "d".into(), is_directory: true }];
    let mut pointed = spec(Root::Pointed { root: Box::new(Root::Host), points }, Workspace::Memory);
    pointed.mounts =
        vec![Mount { directory: 1, path: "x/y".into(), at: "d".into(), read_only: true }];
    pin(
        &ToLauncher::Launch { ticket: 1, spec: pointed },
        "0001070707070707070707070707070707070400010164018080808002e80780018080408080800100010103782f79016401",
    );
    pin(
        &ToLauncher::Attach { ticket: 3, instance: [7; 16], workspace: [9; 16] },
        "01030707070707070707070707070707070709090909090909090909090909090909",
    );
    pin(&ToLauncher::Kill { ticket: 4, instance: [7; 16] }, "020407070707070707070707070707070707");
    pin(&ToLauncher::List { ticket: 5 }, "0305");
    let network = |ticket, request| ToLauncher::Network { ticket, instance: [7; 16], request };
    let rule = AddressRule { first: [10, 1, 0, 0], bits: 16, from_port: 8000, to_port: 8100 };
    pin(
        &network(6, NetworkRequest::Arm(NetworkRules::Addresses(vec![rule]))),
        "0406070707070707070707070707070707070001010a01000010c03ea43f",
    );
    pin(
        &network(7, NetworkRequest::Change(NetworkRules::Open)),
        "0407070707070707070707070707070707070100",
    );
    pin(&network(8, NetworkRequest::Refused), "04080707070707070707070707070707070702");
    pin(&network(9, NetworkRequest::Disarm), "04090707070707070707070707070707070703");
}

#[test]
fn from_the_launcher() {
    let features = LauncherFeatures {
        memory_limit: true,
        cpu_limit: false,
        pids_limit: true,
        freeze: false,
        disk_workspaces: true,
        users: Users::Alone,
        alone_because: Some(AloneBecause::RangeTooShort),
        network: NetworkFeature::ProxyOnly,
    };
    pin(&FromLauncher::Up { features }, "00010001000102010301");
    let freezer = Some("/f".into());
    let cgroup = CgroupPaths { freezer, memory: None, out_of_memory_kills: 5 };
    pin(&FromLauncher::Launched { ticket: 1, pid: 300, cgroup }, "0101ac0201022f660005");
    pin(&FromLauncher::Done { ticket: 2 }, "0202");
    let refused = |code| FromLauncher::Refused {
        ticket: 3,
        refusal: LaunchRefusal { code, step: "s".into(), errno: 1 },
    };
    pin(&refused(RefusalCode::Full), "030300017302");
    pin(&refused(RefusalCode::UnknownRoot), "030301017302");
    pin(&refused(RefusalCode::Unknown), "030302017302");
    pin(&refused(RefusalCode::Duplicate), "030303017302");
    pin(&refused(RefusalCode::Unsupported), "030304017302");
    pin(&refused(RefusalCode::System), "030305017302");
    pin(
        &FromLauncher::Listed { ticket: 4, instances: vec![[1; 16]], more: false },
        "0404010101010101010101010101010101010100",
    );
    pin(
        &FromLauncher::Died {
            instance: [2; 16],
            status: ExitStatus::Signal(9),
            out_of_memory: true,
        },
        "0502020202020202020202020202020202011201",
    );
    pin(&FromLauncher::Armed { ticket: 6 }, "0606");
    pin(
        &FromLauncher::RefusedAddresses { ticket: 7, addresses: vec![([1, 2, 3, 4], 443)] },
        "07070101020304bb03",
    );
}

/// Does not compile when a variant is added: pin its bytes above, then name it here.
#[test]
fn no_variant_is_missing_above() {
    let _ = |message: ToLauncher| match message {
        ToLauncher::Launch { .. }
        | ToLauncher::Attach { .. }
        | ToLauncher::Kill { .. }
        | ToLauncher::List { .. } => {}
        ToLauncher::Network { request, .. } => match request {
            NetworkRequest::Arm(_)
            | NetworkRequest::Change(_)
            | NetworkRequest::Refused
            | NetworkRequest::Disarm => {}
        },
    };
    let _ = |message: FromLauncher| match message {
        FromLauncher::Up { .. }
        | FromLauncher::Launched { .. }
        | FromLauncher::Done { .. }
        | FromLauncher::Refused { .. }
        | FromLauncher::Listed { .. }
        | FromLauncher::Died { .. }
        | FromLauncher::Armed { .. }
        | FromLauncher::RefusedAddresses { .. } => {}
    };
}
