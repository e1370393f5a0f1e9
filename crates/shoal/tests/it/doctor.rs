//! `doctor`, `clean`, `completions`, and what is typed wrongly.

use crate::shell::{able, run_shoal};

#[test]
fn doctor_agrees_with_its_exit_code_and_tries_a_sandbox() {
    let report = run_shoal(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(report.text()).unwrap();
    let able = json["able"].as_bool().unwrap();
    assert_eq!(report.code, Some(i32::from(!able)));
    let findings = json["findings"].as_array().unwrap();
    let tried = findings.iter().any(|found| found["name"] == "a sandbox starts");
    let fatal = findings.iter().any(|found| found["needed"] == true && found["state"] == "no");
    assert!(tried || fatal);
    let runtimes = json["runtimes"].as_array().unwrap();
    let of = |word: &str| runtimes.iter().find(|one| one["runtime"] == word).unwrap();
    assert_eq!(of("native")["state"] == "yes", !fatal);
    assert_eq!(able, runtimes.iter().any(|one| one["state"] == "yes"));
    for word in ["native", "docker", "runc", "crun", "youki", "runsc"] {
        let one = of(word);
        assert!(!one["why"].as_str().unwrap().is_empty(), "{one}");
        assert_eq!(one["state"] == "no", one["remedy"].is_string(), "{one}");
    }
    // What was tried and works says how long it took, and what becomes of used ones.
    let runc = of("runc");
    if runc["state"] == "yes" {
        assert!(runc["why"].as_str().unwrap().contains("ready in"), "{runc}");
        assert!(["wipe", "recreate"].contains(&runc["recycle"].as_str().unwrap()), "{runc}");
    }
    let people = run_shoal(&["doctor", "--no-trial"]);
    assert!(people.text().contains("Sandboxes can"), "{}", people.text());
    assert!(people.text().contains("Runtimes that templates can choose:"), "{}", people.text());
    assert!(!people.text().contains('\u{1b}'), "colours only on terminals");
}

#[test]
fn clean_says_what_it_did() {
    if !able() {
        return;
    }
    let cleaned = run_shoal(&["clean", "--json"]);
    let json: serde_json::Value = serde_json::from_str(cleaned.text()).unwrap();
    assert_eq!((cleaned.code, json["stuck"].as_array().unwrap().len()), (Some(0), 0));
}

/// Built from a clone, it says from which commit.
#[test]
fn the_version_names_the_commit() {
    let shown = run_shoal(&["--version"]);
    let version = shown.text().trim().strip_prefix("shoal ").unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let git = std::process::Command::new("git")
        .args(["-C", root, "rev-parse", "--short=12", "HEAD"])
        .output();
    let package = env!("CARGO_PKG_VERSION");
    match git {
        Ok(git) if git.status.success() => {
            let commit = String::from_utf8(git.stdout).unwrap();
            assert_eq!(version, format!("{package} ({})", commit.trim()));
        }
        Ok(_) | Err(_) => assert_eq!(version, package),
    }
}

#[test]
fn completions_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run_shoal(&["completions", shell]);
        assert_eq!(script.code, Some(0));
        for verb in ["run", "doctor", "clean", "backup", "workspace-mb"] {
            assert!(script.text().contains(verb), "{shell} does not know {verb}");
        }
    }
}

#[test]
fn usage_errors_have_another_exit_code_than_programs() {
    assert_eq!(run_shoal(&["run"]).code, Some(125));
    assert_eq!(run_shoal(&["run", "--memory", "lots", "true"]).code, Some(125));
    assert_eq!(run_shoal(&["doctor", "--what"]).code, Some(2));
    assert_eq!(run_shoal(&["--help"]).code, Some(0));
    let plain = run_shoal(&["run", "--color=always", "--cwd", "not-absolute", "true"]);
    assert!(plain.stderr.contains("\u{1b}[31m") && plain.stderr.contains("try:"));
}
