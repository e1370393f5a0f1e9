//! As an ordinary user: what the table of abilities says is so, tried by the program itself. The
//! user is one that this machine does not know; where it has subordinate users, they are given to
//! it in a mount namespace of its own.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::shell::{eventually, finish, skipped};

/// A user id that is free, also in tests that run at the same time.
fn user() -> u32 {
    200_000 + std::process::id()
}

/// The kinds of ordinary users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Subordinate,
    Alone,
}

/// A home for the user, and the program where the user can reach it.
struct Home {
    path: PathBuf,
    program: File,
    mode: Mode,
}

impl Home {
    /// None, and said so, where the test cannot be made.
    fn make(mode: Mode) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped("not root, so the test cannot become an ordinary user of a known kind");
            return None;
        }
        if mode == Mode::Subordinate && !Path::new("/usr/bin/newuidmap").exists() {
            skipped("no newuidmap");
            return None;
        }
        let name = format!("shoal-home-{}-{mode:?}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(user()), Some(user())).unwrap();
        let program = File::open(env!("CARGO_BIN_EXE_shoal")).unwrap();
        rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty()).unwrap();
        Some(Self { path, program, mode })
    }

    /// The program as the user, by a descriptor: the user may not be able to reach its path.
    fn command(&self, arguments: &[&str]) -> Command {
        let program = format!("/proc/self/fd/{}", self.program.as_raw_fd());
        let mut command = match self.mode {
            Mode::Alone => {
                let mut command = Command::new(program);
                command.uid(user()).gid(user());
                command
            }
            Mode::Subordinate => {
                let user = user();
                // newuidmap looks up subordinate users here.
                let ranges = format!("{user}:500000:65536");
                let script = format!(
                    "mount --make-rprivate / && printf '{ranges}\\n' > $HOME/ranges && \
                     cp /etc/passwd $HOME/passwd && \
                     echo 'ordinary:x:{user}:{user}::/:/bin/sh' >> $HOME/passwd && \
                     mkdir -p $HOME/etc $HOME/work && \
                     mount -t overlay none -o lowerdir=/etc,upperdir=$HOME/etc,workdir=$HOME/work /etc && \
                     cp $HOME/ranges /etc/subuid && cp $HOME/ranges /etc/subgid && \
                     cp $HOME/passwd /etc/passwd && \
                     exec setpriv --reuid {user} --regid {user} --clear-groups \"$@\""
                );
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-c", &script, "sh", &program]);
                command
            }
        };
        command.args(arguments).current_dir("/").env_clear().env("HOME", &self.path);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("XDG_RUNTIME_DIR", &self.path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command: exit code, stdout and stderr.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = finish(self.command(arguments).spawn().unwrap(), &[]);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// How something works, by the table.
    fn how(&self, name: &str) -> String {
        let (code, report, complaints) = self.run(&["doctor", "--json"]);
        assert_eq!(code, Some(0), "{report}{complaints}");
        let report: Value = serde_json::from_str(&report).unwrap();
        let rows = report["abilities"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no row {name}: {rows:?}"))["how"].as_str().unwrap().to_owned()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn in_both_modes(test: impl Fn(&Home)) {
    for mode in [Mode::Alone, Mode::Subordinate] {
        if let Some(home) = Home::make(mode) {
            test(&home);
        }
    }
}

#[test]
fn an_ordinary_user_runs_programs_and_is_user_1000_inside() {
    in_both_modes(|home| {
        let line = "id -u; id -g; id -G; echo x > /workspace/f; cat /workspace/f; exit 3";
        let (code, said, complaints) = home.run(&["run", "--", "sh", "-c", line]);
        assert_eq!((code, said.as_str()), (Some(3), "1000\n1000\n1000\nx\n"), "{complaints}");
    });
}

#[test]
fn the_guest_has_a_user_of_its_own_exactly_where_the_table_says_so() {
    in_both_modes(|home| {
        let line = "awk '/^Uid/ { print $2 }' /proc/1/status";
        let (_, uid, complaints) = home.run(&["run", "--", "sh", "-c", line]);
        let how = home.how("guest and programs separated by user");
        let expected = match home.mode {
            Mode::Subordinate => ("0\n", "works"),
            Mode::Alone => ("1000\n", "weaker"),
        };
        assert_eq!((uid.as_str(), how.as_str()), expected, "{:?}: {complaints}", home.mode);
    });
}

#[test]
fn rootless_limits_that_cannot_be_enforced_are_refused_or_reported() {
    in_both_modes(|home| {
        for (flag, row) in [("--memory", "memory limit"), ("--cpu", "processor limit")] {
            // Here no group is delegated, whatever the machine has.
            assert_eq!(home.how(row), "unsupported");
            let (code, _, complaints) = home.run(&["run", flag, "64", "--", "true"]);
            assert_eq!(code, Some(125));
            assert!(complaints.contains(flag) && complaints.contains("try:"), "{complaints}");
        }
        let (code, _, complaints) = home.run(&["run", "--", "true"]);
        assert_eq!(code, Some(0));
        assert!(complaints.contains("not limited here: memory, processor time"), "{complaints}");
    });
}

#[test]
fn processes_are_counted_for_each_sandbox_by_itself() {
    in_both_modes(|home| {
        assert_eq!(home.how("process limit"), "works");
        let program = "import os, time\n\
                       made = 0\n\
                       try:\n    \
                           while made < 100:\n        \
                               if os.fork() == 0: time.sleep(20); os._exit(0)\n        \
                               made += 1\n\
                       except BlockingIOError:\n    \
                           print(made)";
        let (code, said, complaints) =
            home.run(&["run", "--pids", "20", "--", "python3", "-c", program]);
        assert_eq!((code, said.as_str()), (Some(0), "19\n"), "{complaints}");
    });
}

#[test]
fn rootless_workspace_must_be_a_directory_of_the_user() {
    in_both_modes(|home| {
        let lent = home.path.join("lent");
        std::fs::create_dir(&lent).unwrap();
        let path = lent.to_str().unwrap();
        let refused = home.run(&["run", "--workspace", path, "--", "true"]);
        assert_eq!(refused.0, Some(125), "{}", refused.2);
        assert!(refused.2.contains("belongs to user 0"), "{}", refused.2);
        std::os::unix::fs::chown(&lent, Some(user()), Some(user())).unwrap();
        let (code, _, complaints) =
            home.run(&["run", "--workspace", path, "--", "sh", "-c", "echo mine > file"]);
        assert_eq!(code, Some(0), "{complaints}");
        let about = std::fs::metadata(lent.join("file")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&about), user());
    });
}

#[test]
fn nothing_is_left_when_an_ordinary_user_is_killed() {
    in_both_modes(|home| {
        let mut child = home.command(&["run", "--", "sleep", "1000"]).spawn().unwrap();
        let mark = home.path.display().to_string();
        let of_ours = || -> Vec<u32> {
            let all = std::fs::read_dir("/proc").unwrap().flatten();
            let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
            let ours = |pid: &u32| {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
                let uid = format!("Uid:\t{}\t", user());
                status.is_ok_and(|status| status.contains(&uid))
            };
            pids.filter(ours).collect()
        };
        let until = |what: &str, holds: &dyn Fn() -> bool| {
            for _ in 0..500 {
                if holds() {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            panic!("{mark}: never {what}: {:?}", of_ours());
        };
        until("all started", &|| of_ours().len() >= 3);
        child.kill().unwrap();
        child.wait().unwrap();
        until("all gone", &|| of_ours().is_empty());
    });
}

/// A control group of the second generation that belongs to the user, as systemd delegates one.
struct Delegated(PathBuf);

impl Delegated {
    fn make() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let Some(point) = mount.and_then(|line| line.split(' ').nth(4)) else {
            skipped("no control groups of the second generation");
            return None;
        };
        let path = Path::new(point).join(format!("shoal-delegated-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        for name in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            let user = Some(user());
            std::os::unix::fs::chown(path.join(name), user, user).unwrap();
        }
        Some(Self(path))
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // What the launcher divided it into goes first; the launcher itself is gone.
        for inner in ["shoal-host", "shoal", ""] {
            for _ in 0..100 {
                match std::fs::remove_dir(self.0.join(inner)) {
                    Err(error) if error.raw_os_error() == Some(16) => {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                    }
                    Ok(()) | Err(_) => break,
                }
            }
        }
    }
}

#[test]
fn with_a_delegated_group_an_ordinary_user_can_freeze() {
    for mode in [Mode::Alone, Mode::Subordinate] {
        let Some(home) = Home::make(mode) else { continue };
        assert_eq!(home.how("freezing"), "unsupported");
        let Some(group) = Delegated::make() else { continue };
        let mut inside = Command::new("sh");
        let inner = home.command(&["doctor", "--json"]);
        let line = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
        inside.args(["-c", &line, "sh"]);
        if mode == Mode::Alone {
            // The shell is root, like the process that delegates.
            let user = user().to_string();
            inside.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
        }
        inside.arg(inner.get_program()).args(inner.get_args()).env_clear();
        let given = inner.get_envs().filter_map(|(name, value)| Some((name, value?)));
        inside.envs(given).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = finish(inside.spawn().unwrap(), &[]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = report["abilities"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == "freezing");
        assert_eq!(row.unwrap()["how"], "works", "{report}");
    }
}

#[test]
fn rootless_workspace_never_changes_owners() {
    in_both_modes(|home| {
        let lent = home.path.join("lent");
        std::fs::create_dir(&lent).unwrap();
        std::os::unix::fs::chown(&lent, Some(user()), Some(user())).unwrap();
        let line = "cp /usr/bin/id x; chmod 4755 x 2>/dev/null; chmod 2755 x 2>/dev/null; \
                    python3 -c 'import os; os.open(\"y\", os.O_CREAT, 0o4755)' 2>/dev/null; \
                    install -m 4755 /usr/bin/id z 2>/dev/null; chmod 755 x && echo ordinary; exit 0";
        let path = lent.to_str().unwrap();
        let (code, said, complaints) =
            home.run(&["run", "--workspace", path, "--", "sh", "-c", line]);
        assert_eq!((code, said.as_str()), (Some(0), "ordinary\n"), "{complaints}");
        for file in std::fs::read_dir(&lent).unwrap().flatten() {
            let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata().unwrap());
            assert_eq!(mode & 0o6000, 0, "{}: {mode:o}", file.path().display());
        }
    });
}

#[test]
fn rootless_without_subordinate_users_works_and_reports_it() {
    let Some(home) = Home::make(Mode::Subordinate) else { return };
    let script = "mount --bind /bin/false /usr/bin/newgidmap && exec \"$@\"";
    let inner = home.command(&["run", "--", "id", "-u"]);
    let mut broken = Command::new("unshare");
    broken.args(["-m", "sh", "-c", script, "sh"]);
    broken.arg(inner.get_program()).args(inner.get_args()).env_clear();
    broken.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    broken.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(broken.spawn().unwrap(), &[]);
    assert_eq!(output.stdout, b"1000\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_file_that_is_mounted_among_the_hosts_programs_is_no_obstacle() {
    if !rustix::process::geteuid().is_root() {
        return skipped("no root");
    }
    let mut command = Command::new("unshare");
    let line = "mount --make-rprivate / && mount --bind /etc/hostname /usr/bin/ldd && exec \"$@\"";
    command.args(["-m", "sh", "-c", line, "sh", env!("CARGO_BIN_EXE_shoal")]);
    command.args(["run", "--", "cat", "/usr/bin/ldd"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(command.spawn().unwrap(), &[]);
    let expected = std::fs::read("/etc/hostname").unwrap();
    assert_eq!(output.stdout, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn workspaces_on_disk_have_soft_limits_and_are_removed_whatever_is_in_them() {
    in_both_modes(|home| {
        let data = home.path.join("data");
        let serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
        let more = ["--set", "node.workspace_scan_interval_ms=300"];
        let mut command = home.command(&[&serve[..], &more].concat());
        let log = File::create(home.path.join("log")).unwrap();
        let server = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        eventually("the server is up", || data.join("address").exists());
        let run_shoal = |arguments: &[&str], input: &str| {
            let mut command = home.command(arguments);
            command.env("SHOAL_DATA_DIR", &data).stdin(Stdio::piped());
            let output = finish(command.spawn().unwrap(), input.as_bytes());
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        };
        // The sandboxes that are ready have workspaces, too.
        let none = "name = \"default\"\n[limits]\nbest_effort = true\n[pool]\npool_size = 0\n";
        assert_eq!(run_shoal(&["templates", "put", "-"], none).0, Some(0));
        let template = |limit: &str| {
            format!(
                "name = \"disk\"\nworkspace = {{ kind = \"disk\", limit = \"{limit}\" }}\n[limits]\n\
                 workspace_mb = 8\n[pool]\npool_size = 0\n"
            )
        };
        // Where limits of processes and memory cannot be kept either, that comes first.
        let (code, _, complaint) = run_shoal(&["templates", "put", "-"], &template("hard"));
        assert_eq!(code, Some(1), "{complaint}");
        assert!(complaint.contains("unsupported"), "{complaint}");
        let agreed = template("hard").replace("[pool]", "best_effort = true\n[pool]");
        assert_eq!(run_shoal(&["templates", "put", "-"], &agreed).0, Some(0));
        let (code, id, complaint) = run_shoal(&["create", "--template", "disk"], "");
        assert_eq!(code, Some(0), "{complaint}");
        let why = run_shoal(&["why", &id], "").1;
        assert!(why.contains("on disk, soft limit"), "{why}");
        let hide = "mkdir -p a/b/c && echo x > a/b/c/d && chmod 0 a/b/c a/b a";
        assert_eq!(run_shoal(&["exec", &id, "--", "sh", "-c", hide], "").0, Some(0));
        eventually("what cannot be measured counts as too much", || {
            run_shoal(&["why", &id, "--json"], "").1.contains("disk_limit")
        });
        eventually("nothing of it is left", || {
            let workspaces = data.join("workspaces");
            let count = |path: &Path| std::fs::read_dir(path).unwrap().count();
            // The three rooms of the server.
            count(&workspaces) == 3 && count(&workspaces.join("trash")) == 0
        });
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        assert_eq!(finish(server, &[]).status.code(), Some(0));
    });
}
