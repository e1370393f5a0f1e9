//! Whatever packet a launcher gets, it is refused, or becomes a plan that ends with the filter, has
//! the order that is the security argument, and has no users of the host.
#![no_main]

use guest_protocol::launcher::{LauncherConfig, NetworkMode, Root, Spec, ToLauncher};
use jail::plan::{self, PlanInput, Step, Users};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/guest/src/launcher/plan_input.rs"]
mod plan_input;

const ALL_USERS: [Users; 3] = [Users::Ranges, Users::Subordinate, Users::Alone];
const ALL_MODES: [NetworkMode; 3] = [NetworkMode::Spare, NetworkMode::Fresh, NetworkMode::Shared];

fuzz_target!(|bytes: &[u8]| {
    if let Ok(config) = postcard::from_bytes::<LauncherConfig>(bytes) {
        check_users(&config);
    }
    if let Ok(ToLauncher::Launch { spec, .. }) = postcard::from_bytes(bytes) {
        check_plans(&spec);
    }
    if let Ok(spec) = postcard::from_bytes::<Spec>(bytes) {
        check_plans(&spec);
    }
    for line in String::from_utf8_lossy(bytes).lines() {
        assert!(!plan_input::is_digest(line) || plan_input::is_beneath(line), "{line:?}");
    }
});

fn check_users(config: &LauncherConfig) {
    if !plan_input::is_sound(config) {
        return;
    }
    assert!(!config.run.contains(['/', '.']), "its name leads elsewhere");
    let mut before = 65_535;
    for slot in [0, 1, config.slots / 2, config.slots.saturating_sub(1)] {
        if slot >= config.slots {
            continue;
        }
        let first = plan_input::first_uid(config, Users::Ranges, slot);
        assert!(first > before || slot <= 1, "slots share users");
        before = first.checked_add(65_535).expect("all of them are numbers of users");
        assert!(first >= 65_536 && before < u32::MAX - 1, "{first} to {before}");
        for users in ALL_USERS {
            let map = plan_input::user_map(users, plan_input::first_uid(config, users, slot));
            for line in map.lines() {
                let numbers: Vec<u32> = line.split(' ').map(|n| n.parse().unwrap()).collect();
                assert_eq!(numbers.len(), 3, "{map}");
                // Outside of a user namespace of our own, user 0 is forbidden.
                assert!(users != Users::Ranges || numbers[1] >= 65_536, "{map}");
            }
        }
    }
}

fn check_plans(spec: &Spec) {
    if let Root::Directory(name) = &spec.root
        && plan_input::is_beneath(name)
    {
        assert!(!name.starts_with('/') && !name.split('/').any(|part| part == ".."), "{name:?}");
    }
    let limits = plan_input::limits(spec);
    assert_eq!(limits.pids, spec.limits.pids);
    for users in ALL_USERS {
        for mode in ALL_MODES {
            for counted in [false, true] {
                check(&plan_input::for_spec(spec, mode, users, counted));
            }
        }
    }
}

fn check(input: &PlanInput) {
    assert!(input.hostname.len() <= 64, "the kernel takes no longer name");
    assert!(input.hostname.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
    let mut steps = plan::prepare(true, input.network, input.users);
    steps.extend(plan::enter(input));
    let at = |wanted: &Step| steps.iter().position(|step| step == wanted);
    assert_eq!(steps.last(), Some(&Step::LoadFilter));
    let namespace = at(&Step::NewUserNamespace).expect("a user namespace");
    for privileged in [Step::WriteLimits, Step::OpenProc, Step::TakeRoot, Step::EnterVoid] {
        assert!(at(&privileged).expect("it is always done") < namespace, "{privileged}");
    }
    let entered = at(&Step::EnterRoot).expect("a root");
    for step in &steps {
        match step {
            Step::Mask(_)
            | Step::ReadOnly(_)
            | Step::MountMemory { .. }
            | Step::MountGiven { .. } => {
                let place = at(step).expect("it is one of them");
                assert!((namespace..entered).contains(&place), "{step}");
            }
            _ => {}
        }
        assert!(!step.to_string().contains('\n'), "{step}");
    }
    for last in [Step::Undumpable, Step::DieWithLauncher, Step::NoNewPrivileges] {
        assert!(at(&last).expect("it is always done") > entered, "{last}");
    }
}
