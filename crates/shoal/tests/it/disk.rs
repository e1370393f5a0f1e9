//! Workspaces on disk as users of a server meet them: what is promised is kept, what cannot be kept
//! is refused, and nothing is left by whatever happens.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::shell::{able, eventually, skipped};
use crate::test_server::{Scratch, TestServer, isolated_command, names};

const HARD: &str = ", limit = \"hard\"";

/// Puts a template with its workspace on disk.
fn put(served: &TestServer, name: &str, workspace_mb: u32, more: &str) {
    let said = try_put(served, name, workspace_mb, more);
    assert_eq!(said.code, Some(0), "{said:?}");
}

fn try_put(
    served: &TestServer,
    name: &str,
    workspace_mb: u32,
    more: &str,
) -> crate::shell::CommandOutput {
    let text = format!(
        "name = \"{name}\"\nworkspace = {{ kind = \"disk\"{more} }}\n\
         [limits]\nworkspace_mb = {workspace_mb}\n[pool]\npool_size = 0\n"
    );
    served.run_with_input(&["templates", "put", "-"], Some(text.as_bytes()))
}

/// A sandbox of a template.
fn sandbox(served: &TestServer, template: &str) -> String {
    let created = served.json(&["create", "--template", template, "--json"]);
    let id = created["sandbox"]["id"].as_str().or_else(|| created["id"].as_str());
    id.unwrap_or_else(|| panic!("{created}")).to_owned()
}

/// What is there of workspaces, besides the rooms that the server keeps for itself.
fn left(served: &TestServer) -> Vec<String> {
    let mut all = names(&served.data().join("workspaces"));
    all.retain(|name| !["new", "spares", "trash"].contains(&name.as_str()));
    all.extend(names(&served.data().join("workspaces/trash")));
    all
}

fn with_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped("no root");
    }
    root && able()
}

fn fast() -> Vec<&'static str> {
    vec!["--set", "node.workspace_scan_interval_ms=300"]
}

#[test]
fn a_hard_limit_is_met_as_a_full_disk() {
    if !with_root() {
        return;
    }
    let served = TestServer::start().without_spares();
    put(&served, "hard", 32, HARD);
    let id = sandbox(&served, "hard");
    let filled = served.run(&["exec", &id, "--", "sh", "-c", "head -c 100000000 /dev/zero > big"]);
    assert_eq!(filled.code, Some(1), "{filled:?}");
    assert!(filled.stderr.contains("No space left"), "{filled:?}");
    let held: u64 = served.text(&["exec", &id, "--", "stat", "-c", "%s", "big"]).parse().unwrap();
    assert!(held.abs_diff(32 << 20) * 20 <= 32 << 20, "{held}");
    let why = served.json(&["why", &id, "--json"]);
    assert_eq!(why["workspace_limit"], "hard", "{why}");
    assert!(served.text(&["why", &id]).contains("on disk, hard limit"));
    served.text(&["rm", &id]);
    eventually("its image is gone", || left(&served).is_empty());
    let metrics = metrics(&served);
    assert!(metrics.contains("shoal_disk_free_bytes "), "{metrics}");
}

#[test]
fn a_soft_limit_ends_who_writes_too_much_and_says_why() {
    if !able() {
        return;
    }
    let served = TestServer::start_on(Scratch::new(), &fast()).without_spares();
    put(&served, "soft", 8, ", limit = \"soft\"");
    let id = sandbox(&served, "soft");
    served.text(&["exec", &id, "--", "sh", "-c", "head -c 4000000 /dev/zero > some"]);
    eventually("what it holds is measured", || {
        served.json(&["why", &id, "--json"])["workspace_bytes"].as_u64() >= Some(4_000_000)
    });
    let written =
        served.run(&["exec", &id, "--", "sh", "-c", "head -c 20000000 /dev/zero > big; sleep 30"]);
    assert_ne!(written.code, Some(0), "{written:?}");
    assert!(written.stderr.contains("disk_limit"), "{written:?}");
    eventually("its end is reported", || {
        let why = served.json(&["why", &id, "--json"]);
        why["reason"] == "disk_limit" && why["detail"].as_str().unwrap().contains("8 MB")
    });
    eventually("its files are gone", || left(&served).is_empty());
    assert!(metrics(&served).contains("reason=\"disk_limit\""));
}

#[test]
fn kill_9_leaves_nothing_that_the_next_start_does_not_remove() {
    if !able() {
        return;
    }
    let served = TestServer::start().without_spares();
    put(&served, "soft", 8, ", limit = \"soft\"");
    let root = rustix::process::geteuid().is_root();
    if root {
        put(&served, "hard", 8, HARD);
    }
    for template in if root { vec!["soft", "hard"] } else { vec!["soft"] } {
        let id = sandbox(&served, template);
        served.text(&["exec", &id, "--", "sh", "-c", "mkdir -p a/b/c; echo x > a/b/c/d"]);
    }
    let workspaces = served.data().join("workspaces");
    let (_, scratch) = served.stop(Signal::KILL);
    assert!(names(&workspaces).len() > 3, "it had no time to clean up");
    // As if it had been killed in the middle of other things, too.
    for stray in ["00000000-0000-0000-0000-0000000000aa", "new/half", "trash/half", "spares/half"] {
        std::fs::create_dir_all(workspaces.join(stray).join("in/it")).unwrap();
    }
    let served = TestServer::start_on(scratch, &[]);
    eventually("nothing is left", || left(&served).is_empty());
    let log = served.log();
    assert!(log.contains("moved to lost+found"), "what no record names is kept: {log}");
}

#[test]
fn where_no_hard_limit_works_a_template_is_refused_unless_it_agrees() {
    if !with_root() {
        return;
    }
    // No quotas, and no loop devices for a file system in a file.
    let disk = SmallDisk::memory("64m");
    let mut flags = fast();
    flags.extend(["--store", "memory", "--set", "node.workspace_free_floor_mb=0"]);
    let served = TestServer::start_by(disk.scratch(), &flags, without_loop_devices);
    let refused = try_put(&served, "hard", 4, HARD);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("unsupported"), "{refused:?}");
    assert!(refused.stderr.contains("workspace.limit"), "{refused:?}");
    let text = "name = \"agreed\"\nworkspace = { kind = \"disk\", limit = \"hard\" }\n[limits]\n\
                workspace_mb = 4\nbest_effort = true\n[pool]\npool_size = 0\n";
    let agreed = served.run_with_input(&["templates", "put", "-"], Some(text.as_bytes()));
    assert_eq!(agreed.code, Some(0), "{agreed:?}");
    assert!(served.log().contains("soft limit"), "{}", served.log());
    let id = sandbox(&served, "agreed");
    assert_eq!(served.json(&["why", &id, "--json"])["workspace_limit"], "soft");
}

/// The program, where the host's loop devices are out of reach.
fn without_loop_devices(arguments: &[&str]) -> Command {
    let program = isolated_command(arguments);
    let script = "mount --bind /dev/null /dev/loop-control && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn disk_filled_with_removed_files_ends_only_its_sandbox() {
    if !with_root() {
        return;
    }
    let Some(disk) = SmallDisk::mount(320) else { return };
    // No scan happens during the test: only the floor of free space acts.
    let flags = ["workspace_scan_interval_ms=600000", "workspace_free_floor_mb=100"];
    let flags = flags.map(|flag| format!("node.{flag}"));
    let flags = ["--set", flags[0].as_str(), "--set", flags[1].as_str()];
    let served = TestServer::start_on(disk.scratch(), &flags);
    put(&served, "soft", 512, ", limit = \"soft\"");
    let victim = sandbox(&served, "soft");
    served.text(&["exec", &victim, "--", "sh", "-c", "head -c 20000000 /dev/zero > work"]);
    let writer = sandbox(&served, "soft");
    let script = "exec 3>big; rm big; head -c 180000000 /dev/zero >&3; sleep 30";
    let wrote = served.run(&["exec", &writer, "--", "sh", "-c", script]);
    assert!(wrote.stderr.contains("disk_limit"), "{wrote:?}");
    eventually("its end is reported", || {
        let why = served.json(&["why", &writer, "--json"]);
        why["detail"].as_str().is_some_and(|detail| detail.contains("largest"))
    });
    let kept = served.text(&["exec", &victim, "--", "stat", "-c", "%s", "work"]);
    assert_eq!(kept, "20000000");
}

#[test]
fn a_soft_limit_counts_removed_files_that_are_still_open() {
    if !able() {
        return;
    }
    let served = TestServer::start_on(Scratch::new(), &fast());
    put(&served, "soft", 8, ", limit = \"soft\"");
    let id = sandbox(&served, "soft");
    let script = "exec 3>big; rm big; head -c 20000000 /dev/zero >&3; sleep 30";
    let wrote = served.run(&["exec", &id, "--", "sh", "-c", script]);
    assert!(wrote.stderr.contains("disk_limit"), "{wrote:?}");
}

#[test]
fn a_full_disk_refuses_what_needs_it_and_nothing_else() {
    if !with_root() {
        return;
    }
    let Some(disk) = SmallDisk::mount(256) else { return };
    let mut flags = fast();
    flags.extend(["--set", "node.workspace_free_floor_mb=100"]);
    let served = TestServer::start_on(disk.scratch(), &flags);
    put(&served, "hard", 32, HARD);
    let id = sandbox(&served, "hard");
    served.text(&["exec", &id, "--", "sh", "-c", "echo kept > file"]);
    put(&served, "promised", 256, HARD);
    let refused = served.run(&["create", "--template", "promised"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("disk_full"), "{refused:?}");
    let ballast = served.scratch.0.join("ballast");
    std::fs::write(&ballast, vec![1; 180 << 20]).unwrap();
    eventually("the loss is reported", || {
        let refused = served.run(&["create", "--template", "hard"]);
        refused.code == Some(1) && refused.stderr.contains("disk_full")
    });
    let text = "name = \"memory\"\nworkspace = { kind = \"memory\" }\n[pool]\npool_size = 0\n";
    let memory = served.run_with_input(&["templates", "put", "-"], Some(text.as_bytes()));
    assert_eq!(memory.code, Some(0), "{memory:?}");
    served.text(&["rm", &sandbox(&served, "memory")]);
    assert_eq!(served.text(&["exec", &id, "--", "cat", "file"]), "kept", "nothing is lost");
    std::fs::remove_file(&ballast).unwrap();
    eventually("there is room again", || {
        served.run(&["create", "--template", "hard"]).code == Some(0)
    });
}

/// A file system of its own for the data of a server.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(size_mb: u64) -> Option<Self> {
        const MKFS: &str = "/usr/sbin/mkfs.ext4";
        if !Path::new(MKFS).exists() {
            skipped("no mkfs.ext4");
            return None;
        }
        let name = format!("shoal-disk-{}-{size_mb}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let image = path.with_extension("image");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::File::create(&image).unwrap().set_len(size_mb << 20).unwrap();
        run(Command::new(MKFS).args(["-q", "-F", "-m", "0"]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path));
        std::fs::remove_file(&image).unwrap();
        Some(Self(path))
    }

    fn memory(size: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shoal-disk-{}-{size}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let options = format!("size={size}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path));
        Self(path)
    }

    fn scratch(&self) -> Scratch {
        let inside = self.0.join("scratch");
        std::fs::create_dir(&inside).unwrap();
        Scratch(inside)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The page of numbers.
fn metrics(served: &TestServer) -> String {
    let address = std::fs::read_to_string(served.data().join("address")).unwrap();
    let key = std::fs::read_to_string(served.data().join("admin.key")).unwrap();
    let bearer = format!("Authorization: Bearer {}", key.trim());
    let url = format!("{}/metrics", address.trim());
    let output = Command::new("curl").args(["-sf", "-H", &bearer, &url]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Doctor says the same as the server finds.
#[test]
fn doctor_says_which_hard_limit_works_where_data_is_kept() {
    let report = crate::shell::run_shoal(&["doctor", "--json", "--no-trial"]);
    let json: Value = serde_json::from_str(report.text()).unwrap();
    let findings = json["findings"].as_array().unwrap();
    let found = findings.iter().find(|one| one["name"] == "hard limit of workspaces").unwrap();
    assert!(!found["why"].as_str().unwrap().is_empty());
    if with_root() && Path::new("/usr/sbin/mkfs.ext4").exists() {
        assert_eq!(found["state"], "yes", "{found}");
    }
}

/// What a template leaves open is the same whatever else it says, and is shown wherever one looks.
#[test]
fn workspace_placement_does_not_depend_on_other_settings() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.0.join("shoal.toml");
    let text = "[[templates]]\nname = \"default\"\n[templates.limits]\nbest_effort = true\n\
                [templates.pool]\npool_size = 1\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let served = TestServer::start_on(scratch, &["--config", &file]);
    let list = served.json(&["templates", "--json"]);
    assert_eq!(list["effective"][0]["workspace"]["kind"], "disk", "{list}");
    let why = list["effective"][0]["workspace"]["why"].as_str().unwrap();
    assert!(why.contains("workspace.kind is not given"), "{why}");
    assert_eq!(list["templates"][0]["workspace"].get("kind"), None, "{list}");
    assert!(served.text(&["templates"]).contains("MB disk"));
    let shown = served.text(&["templates", "get", "default"]);
    assert!(shown.starts_with("# workspace: disk, "), "{shown}");
    let again = served.run_with_input(&["templates", "put", "-"], Some(shown.as_bytes()));
    assert_eq!(again.code, Some(0), "what is shown can be put: {again:?}");
    let data = served.data().to_str().unwrap().to_owned();
    let config =
        crate::shell::run_shoal(&["config", "--config", &file, "--data-dir", &data, "--json"]);
    let config: Value = serde_json::from_str(config.text()).unwrap();
    let workspace = &config["templates"][0]["effective"]["workspace"];
    assert_eq!(*workspace, list["effective"][0]["workspace"], "both say the same");
    let doctor =
        crate::shell::run_shoal(&["doctor", "--config", &file, "--data-dir", &data, "--json"]);
    let doctor: Value = serde_json::from_str(doctor.text()).unwrap();
    assert_eq!(doctor["templates"][0]["workspace"], *workspace, "{doctor}");
    // Files of a session are where that says, and a kill does not take them.
    let session = served.json(&["session", "create", "--json"]);
    let session = session["id"].as_str().unwrap().to_owned();
    served.text(&["session", "exec", &session, "--", "sh", "-c", "echo kept > f"]);
    let (_, scratch) = served.stop(Signal::KILL);
    let served = TestServer::start_on(scratch, &["--config", &file]);
    let read = served.text(&["session", "exec", &session, "--", "cat", "f"]);
    assert_eq!(read, "kept");
}
