//! `shoal run` with real programs: streams, exit codes, limits, signals.

use std::os::unix::fs::{MetadataExt as _, chown};

use rustix::process::{Pid, Signal, kill_process};

use crate::shell::{able, eventually, finish, run_shoal, shoal, shoal_with_input};

/// A deadline around everything that could run away.
const LIMITED: [&str; 3] = ["run", "--timeout=30s", "--"];

fn run(words: &[&str]) -> crate::shell::CommandOutput {
    run_shoal(&[&LIMITED, words].concat())
}

#[test]
fn programs_print_and_end_as_they_would_anywhere() {
    if !able() {
        return;
    }
    let cases: &[(&[&str], i32, &str, &str)] = &[
        (&["python3", "-c", "print(1)"], 0, "1\n", ""),
        (&["sh", "-c", "echo out; echo err >&2; exit 42"], 42, "out\n", "err\n"),
        (&["sh", "-c", "kill -TERM $$"], 143, "", ""),
        (&["pwd"], 0, "/workspace\n", ""),
        (&["id", "-u"], 0, "1000\n", ""),
    ];
    for (words, code, stdout, stderr) in cases {
        let said = run(words);
        assert_eq!((said.code, said.text()), (Some(*code), *stdout), "{words:?} {said:?}");
        assert_eq!(said.stderr, *stderr, "{words:?}");
    }
}

#[test]
fn run_exit_codes_tell_a_failed_start_from_a_failed_program() {
    if !able() {
        return;
    }
    let missing = run(&["no-such-program"]);
    assert_eq!(missing.code, Some(127));
    assert!(missing.stderr.contains("no-such-program") && missing.stderr.contains("try:"));
    assert_eq!(run(&["/etc/passwd"]).code, Some(126));
}

#[test]
fn bytes_pass_through_unchanged_in_both_directions() {
    if !able() {
        return;
    }
    let mut bytes = Vec::with_capacity(3 << 20);
    let mut state = 1_u32;
    while bytes.len() < 3 << 20 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.push((state >> 24) as u8);
    }
    let said = shoal_with_input(&[&LIMITED[..], &["cat"]].concat(), Some(&bytes));
    assert_eq!((said.code, said.stdout == bytes), (Some(0), true), "{}", said.stderr);
    let empty = shoal_with_input(&[&LIMITED[..], &["wc", "-c"]].concat(), Some(b""));
    assert_eq!(empty.text(), "0\n", "the end of input is seen");
}

#[test]
fn a_reader_that_goes_away_ends_the_program() {
    if !able() {
        return;
    }
    let mut child = shoal(&[&LIMITED[..], &["yes"]].concat()).spawn().unwrap();
    drop(child.stdout.take());
    let output = finish(child, &[]);
    assert_eq!(output.status.code(), Some(128 + 13), "{output:?}");
}

#[test]
fn run_prints_timeout_and_out_of_memory() {
    if !able() {
        return;
    }
    let slow = run_shoal(&["run", "--timeout", "300ms", "--", "sleep", "30"]);
    assert_eq!(slow.code, Some(137));
    assert!(slow.stderr.contains("timed out"), "{}", slow.stderr);
    let hungry = ["run", "--timeout=30s", "--memory", "32", "--", "python3", "-c"];
    let hungry = run_shoal(&[&hungry[..], &["x = b'a' * (200 << 20)"]].concat());
    assert_eq!(hungry.code, Some(137));
    assert!(hungry.stderr.contains("out of memory"), "{}", hungry.stderr);
}

#[test]
fn run_prints_its_result_as_json() {
    if !able() {
        return;
    }
    let line = "cat; echo err >&2; exit 3";
    let said = shoal_with_input(&["run", "--json", "--timeout=30s", "--shell", line], Some(b"in"));
    let json: serde_json::Value = serde_json::from_str(said.text()).unwrap();
    assert_eq!(said.code, Some(3));
    let fields = ["exit_code", "signal", "stdout", "stderr", "oom", "timed_out", "truncated"];
    let expected = serde_json::json!([3, null, "in", "err\n", false, false, false]);
    assert_eq!(serde_json::Value::from_iter(fields.map(|key| json[key].clone())), expected);
    assert!(json["duration_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn run_uses_the_given_environment_and_directory() {
    if !able() {
        return;
    }
    let line = "echo \"$A|$B|$HOME|$(pwd)\"";
    let asked = ["run", "--timeout=30s", "-e", "A=1", "--env", "B", "--cwd", "/tmp"];
    let mut command = shoal(&[&asked[..], &["--shell", line]].concat());
    let output = finish(command.env("B", "from outside").env("C", "hidden").spawn().unwrap(), &[]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1|from outside|/workspace|/tmp\n");
    let names = run(&["env"]);
    assert!(!names.text().contains("CARGO"), "nothing of our environment: {}", names.text());
}

#[test]
fn signals_reach_the_program() {
    if !able() {
        return;
    }
    let line = "trap 'echo caught; exit 5' INT; touch /tmp/ready; echo ready; \
                while :; do sleep 0.05; done";
    let mut child = shoal(&["run", "--timeout=30s", "--shell", line]).spawn().unwrap();
    let mut seen = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut seen).unwrap();
    assert_eq!(&seen, b"ready\n");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = finish(child, &[]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(5), &b"caught\n"[..]));
}

#[test]
fn a_killed_run_leaves_nothing_after_clean() {
    if !able() {
        return;
    }
    let mut child =
        shoal(&["run", "--timeout=30s", "--shell", "echo ready; sleep 30.4242"]).spawn().unwrap();
    let mut seen = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut seen).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the program ends with the run", || {
        let running = std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            line.ends_with(b"sleep\x0030.4242\0")
        });
        !running
    });
    let cleaned = run_shoal(&["clean"]);
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}

#[test]
fn a_workspace_on_disk_keeps_its_files() {
    const USER: u32 = 1000;
    if !able() {
        return;
    }
    let directory = std::env::temp_dir().join(format!("shoal-workspace-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let path = directory.to_str().unwrap();
    let asked = ["run", "--timeout=30s", "--workspace", path, "--shell", "echo kept > file; pwd"];
    let foreign = run_shoal(&asked);
    chown(&directory, Some(USER), Some(USER)).unwrap();
    let lent = run_shoal(&asked);
    let kept = std::fs::read_to_string(directory.join("file")).unwrap_or_default();
    let owner = std::fs::metadata(directory.join("file")).map(|about| about.uid()).ok();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(foreign.code, Some(125), "it belongs to another user: {foreign:?}");
    assert_eq!((lent.code, lent.text()), (Some(0), "/workspace\n"), "{}", lent.stderr);
    assert_eq!((kept.as_str(), owner), ("kept\n", Some(USER)));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(path), "no other process sees the mount");
}
