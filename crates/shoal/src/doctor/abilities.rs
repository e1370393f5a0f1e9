//! What works for which user: one table for the documentation, for `shoal doctor`, and for the
//! tests that try each row as such a user. A weaker or missing ability is in it, too.

use runtime::{Capabilities, NetworkAbility, Users};
use serde::Serialize;

/// How well something works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    Works,
    Weaker,
    Unsupported,
}

/// One thing that sandboxes do or prevent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Ability {
    pub(crate) name: &'static str,
    pub(crate) how: How,
    pub(crate) why: &'static str,
}

const fn works(name: &'static str, why: &'static str) -> Ability {
    Ability { name, how: How::Works, why }
}

const fn weaker(name: &'static str, why: &'static str) -> Ability {
    Ability { name, how: How::Weaker, why }
}

const fn unsupported(name: &'static str, why: &'static str) -> Ability {
    Ability { name, how: How::Unsupported, why }
}

const REFUSED: &str = "a template with this limit is refused, unless it has limits.best_effort";

/// What works with these capabilities.
pub(crate) fn abilities(can: Capabilities) -> Vec<Ability> {
    let mut all = vec![
        works("programs, files, ports, terminals", "the same for every user"),
        works("images and directories as root", "the same for every user"),
    ];
    all.extend(limits(can));
    all.extend(walls(can.users));
    all
}

fn limits(can: Capabilities) -> Vec<Ability> {
    let by_groups = |name, able: bool, why, without| {
        if able { works(name, why) } else { unsupported(name, without) }
    };
    let by_root = |name, why| match can.users {
        Users::Ranges => {
            works(name, "by btrfs, by project quota, or by an image for each workspace")
        }
        Users::Subordinate | Users::Alone => unsupported(name, why),
    };
    vec![
        by_groups("memory limit", can.memory_limit, "by control group", REFUSED),
        by_groups("processor limit", can.cpu_limit, "by control group", REFUSED),
        match (can.pids_limit, can.memory_limit) {
            (true, true) => works("process limit", "by control group"),
            (true, false) => works("process limit", "by a limit on the users of each sandbox"),
            (false, true | false) => unsupported("process limit", REFUSED),
        },
        by_groups(
            "out of memory is reported",
            can.memory_limit,
            "by control group",
            "it looks like any other kill",
        ),
        by_groups("freezing", can.freeze, "by control group", "idle sandboxes keep running"),
        by_groups(
            "workspaces on disk",
            can.disk_workspaces,
            "in the data directory",
            "there is no directory for them",
        ),
        by_root(
            "hard limit of a workspace on disk",
            "only a soft limit works: Shoal measures the workspace",
        ),
        network(can.network),
    ]
}

const NETWORK: &str = "network by policy";

/// What works if the configuration switches the way out off.
pub(crate) fn without_egress(all: Vec<Ability>) -> Vec<Ability> {
    let off = "switched off: egress.enabled is false, so templates with a network are refused";
    let one = |one: Ability| if one.name == NETWORK { unsupported(NETWORK, off) } else { one };
    all.into_iter().map(one).collect()
}

fn network(ability: NetworkAbility) -> Ability {
    const NAME: &str = NETWORK;
    match ability {
        NetworkAbility::Transparent => works(NAME, "without settings inside, by nf_tables"),
        NetworkAbility::ProxyOnly => weaker(
            NAME,
            "the kernel has no nf_tables with tproxy: only programs that use the proxy inside reach anything",
        ),
        NetworkAbility::None => unsupported(NAME, "templates with a network are refused"),
    }
}

fn walls(users: Users) -> Vec<Ability> {
    let shared_counters = "the kernel counts all your sandboxes together, as one user";
    let host_devices = "the six device files are the host's: all sandboxes see locks on them";
    match users {
        Users::Ranges => vec![
            works("sandboxes separated by user", "each has 65,536 users of its own"),
            works(
                "guest and programs separated by user",
                "the guest is another user in each sandbox",
            ),
            works("your groups", "no program has them"),
            works("counters of the kernel", "the kernel counts each sandbox by itself"),
            works("device files", "each sandbox has its own"),
        ],
        Users::Subordinate => vec![
            weaker(
                "sandboxes separated by user",
                "programs run as your user: only namespaces separate them",
            ),
            works("guest and programs separated by user", "each guest has a subordinate user"),
            works("your groups", "no program has them"),
            weaker("counters of the kernel", shared_counters),
            weaker("device files", host_devices),
        ],
        Users::Alone => vec![
            weaker(
                "sandboxes separated by user",
                "programs run as your user: only namespaces separate them",
            ),
            weaker(
                "guest and programs separated by user",
                "the same user: only the kernel's protection of the first process keeps them apart",
            ),
            weaker("your groups", "programs have them, without their names"),
            weaker("counters of the kernel", shared_counters),
            weaker("device files", host_devices),
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;

    const NO_GROUPS: Capabilities = Capabilities {
        memory_limit: false,
        cpu_limit: false,
        pids_limit: true,
        freeze: false,
        ..Capabilities::ALL
    };

    /// The table as a page.
    fn page() -> String {
        let columns = [
            ("root", Capabilities::ALL),
            (
                "user, newuidmap, groups",
                Capabilities { users: Users::Subordinate, ..Capabilities::ALL },
            ),
            ("user, newuidmap", Capabilities { users: Users::Subordinate, ..NO_GROUPS }),
            ("user, groups", Capabilities { users: Users::Alone, ..Capabilities::ALL }),
            ("user alone", Capabilities { users: Users::Alone, ..NO_GROUPS }),
        ];
        let tables = columns.map(|(_, can)| abilities(can));
        let mut page = String::from(
            "# What works for whom\n\n\
             Made from the code; `shoal doctor` prints the column of the machine it runs on. *groups*: a control group \
             was delegated to the user, as `systemd-run --user --scope -p Delegate=yes` does. *newuidmap*: the programs \
             `newuidmap` and `newgidmap` are installed and the user has a range in `/etc/subuid` and `/etc/subgid`. \
             Unsupported means refused with a clear error, never ignored. How to get there: \
             [guides/rootless.md](guides/rootless.md).\n\n|",
        );
        for (name, _) in &columns {
            let _ = write!(page, " | {name}");
        }
        let _ = write!(page, " |\n|---{}|\n", "|---".repeat(columns.len()));
        let mut notes = Vec::new();
        for (row, first) in tables[0].iter().enumerate() {
            let _ = write!(page, "| {}", first.name);
            for table in &tables {
                let Ability { how, why, .. } = table[row];
                let word = match how {
                    How::Works => "works",
                    How::Weaker => "weaker",
                    How::Unsupported => "unsupported",
                };
                let known = notes.iter().position(|note| *note == why);
                let number = known.unwrap_or_else(|| {
                    notes.push(why);
                    notes.len() - 1
                });
                let _ = write!(page, " | {word} ({})", number + 1);
            }
            page.push_str(" |\n");
        }
        page.push('\n');
        for (number, note) in notes.iter().enumerate() {
            let _ = writeln!(page, "{}. {note}", number + 1);
        }
        page.push_str(CONTAINERS);
        page
    }

    /// What the keeper finds out about containers, at the start of a server.
    const CONTAINERS: &str = "\n## Networks in containers\n\n\
         The server tries them when it starts; `shoal doctor` says what came of it.\n\n\
         | runtime | network by policy |\n|---|---|\n\
         | docker | works, where used containers are wiped: the server is root on the machine of the engine, and \
         reaches guests by sockets; else unsupported |\n\
         | runc, crun, youki | works |\n\
         | runsc | unsupported: gVisor has a network of its own inside, which no policy of ours reaches |\n\n\
         Where the kernel has no nf_tables with tproxy, *works* means: only for programs that use the proxy \
         inside.\n";

    #[test]
    fn abilities_page_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/abilities.md");
        let made = page();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == made,
            "docs/abilities.md differs from the code; write it again:\n    \
             UPDATE_DOCS=1 cargo test -p shoal abilities"
        );
    }

    #[test]
    fn abilities_have_the_same_rows_for_every_user_and_no_weak_one_for_root() {
        let names = |users| {
            let can = Capabilities { users, ..Capabilities::ALL };
            abilities(can).into_iter().map(|one| one.name).collect::<Vec<_>>()
        };
        let off = without_egress(abilities(Capabilities::ALL));
        let network = off.iter().find(|one| one.name == NETWORK).expect("a row");
        assert!(network.how == How::Unsupported && network.why.contains("egress.enabled"));
        assert_eq!(off.len(), abilities(Capabilities::ALL).len());
        assert_eq!(names(Users::Ranges), names(Users::Subordinate));
        assert_eq!(names(Users::Ranges), names(Users::Alone));
        assert!(abilities(Capabilities::ALL).iter().all(|one| one.how == How::Works));
    }
}
