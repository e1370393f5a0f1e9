//! Plans as they were reviewed, and the order in them that must never change.

use super::*;

fn plan_input(network: Network, workspace: Workspace, users: Users) -> PlanInput {
    PlanInput {
        hostname: "shoal-1".to_owned(),
        scratch_bytes: 1 << 20,
        workspace,
        shown: Vec::new(),
        network,
        users,
        processes: (users != Users::Ranges).then_some(128),
    }
}

fn text(steps: &[Step]) -> String {
    steps.iter().map(|step| step.to_string() + "\n").collect()
}

/// Compares with a file beside this one. To accept a change, write the output of the failed test
/// into the file.
#[track_caller]
fn snapshot(name: &str, expected: &str, steps: &[Step]) {
    let found = text(steps);
    assert!(found == expected, "{name}: the plan is now\n{found}");
}

#[test]
fn plans_are_as_they_were_reviewed() {
    snapshot("join_groups", include_str!("join_groups.txt"), &join_groups());
    snapshot(
        "prepare_limits",
        include_str!("prepare_limits.txt"),
        &prepare(true, Network::Spare, Users::Ranges),
    );
    snapshot(
        "prepare_bare",
        include_str!("prepare_bare.txt"),
        &prepare(false, Network::Fresh, Users::Ranges),
    );
    snapshot(
        "prepare_alone",
        include_str!("prepare_alone.txt"),
        &prepare(false, Network::Spare, Users::Alone),
    );
    let memory = Workspace::Memory(4 << 20);
    snapshot(
        "enter_memory",
        include_str!("enter_memory.txt"),
        &enter(&plan_input(Network::Spare, memory, Users::Ranges)),
    );
    snapshot(
        "enter_disk_fresh",
        include_str!("enter_disk_fresh.txt"),
        &enter(&plan_input(Network::Fresh, Workspace::Given, Users::Ranges)),
    );
    snapshot(
        "enter_subordinate",
        include_str!("enter_subordinate.txt"),
        &enter(&plan_input(Network::Spare, memory, Users::Subordinate)),
    );
    snapshot(
        "enter_alone",
        include_str!("enter_alone.txt"),
        &enter(&plan_input(Network::Spare, memory, Users::Alone)),
    );
}

/// The steps that must come in this order for these users.
fn argument(users: Users) -> Vec<Step> {
    let mut ordered = vec![Step::OpenProc, Step::TakeRoot, Step::EnterVoid];
    match users {
        Users::Ranges | Users::Subordinate => ordered.extend([
            Step::BecomeSlotUser,
            Step::NewUserNamespace,
            Step::BecomeRootInside,
            Step::NewMounts,
            Step::MountProc,
            Step::OpenLocks,
            Step::Mask("proc/locks"),
            Step::EnterRoot,
            Step::KeepFewCapabilities,
            Step::UseFilesAsUser,
        ]),
        Users::Alone => ordered.extend([
            Step::NewUserNamespace,
            Step::NewMounts,
            Step::MountProc,
            Step::OpenLocks,
            Step::Mask("proc/locks"),
            Step::EnterRoot,
            Step::DropCapabilities,
        ]),
    }
    ordered.extend([
        Step::Undumpable,
        Step::DieWithLauncher,
        Step::NoNewPrivileges,
        Step::LoadFilter,
    ]);
    ordered
}

#[test]
fn the_order_is_the_security_argument() {
    for users in [Users::Ranges, Users::Subordinate, Users::Alone] {
        for network in [Network::Spare, Network::Fresh, Network::Shared] {
            for limits in [false, true] {
                for workspace in [Workspace::Memory(1), Workspace::Given] {
                    let mut steps = prepare(limits, network, users);
                    steps.extend(enter(&plan_input(network, workspace, users)));
                    let at = |wanted: &Step| {
                        steps.iter().position(|step| step == wanted).expect("step is in the plan")
                    };
                    let ordered = argument(users);
                    assert!(ordered.windows(2).all(|two| at(&two[0]) < at(&two[1])), "{steps:?}");
                    assert_eq!(steps.last(), Some(&Step::LoadFilter));
                    for mounted in steps.iter().filter(|step| {
                        matches!(
                            step,
                            Step::Mask(_)
                                | Step::ReadOnly(_)
                                | Step::MountMemory { .. }
                                | Step::MountScratch { .. }
                        )
                    }) {
                        assert!(at(mounted) < at(&Step::EnterRoot), "{mounted}");
                    }
                }
            }
        }
    }
}

#[test]
fn host_directories_are_mounted_before_the_root_is_entered() {
    let mut input = plan_input(Network::Spare, Workspace::Given, Users::Ranges);
    input.shown = vec!["data".to_owned(), "data/out".to_owned()];
    let steps = enter(&input);
    let at = |wanted: &Step| steps.iter().position(|step| step == wanted).unwrap();
    let shown = |at: &str| Step::MountShown { at: at.to_owned() };
    let order = [
        at(&Step::MountGiven { path: "workspace" }),
        at(&shown("data")),
        at(&shown("data/out")),
        at(&Step::EnterRoot),
    ];
    assert!(order.is_sorted(), "{order:?}");
}
