//! The examples of the guides, run as they are written: every block of shell commands in
//! `docs/guides` and the README has a plan here, and a block without one is a failure. What a plan
//! leaves out, it names with its reason.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell::{able, finish, skipped};
use crate::test_server::{Scratch, TestServer, output_of};

/// What becomes of a block.
enum Plan {
    /// It runs against a server, after some preparation, and prints these words.
    Runs(Run),
    /// Why it does not.
    Not(&'static str),
}

#[derive(Default)]
struct Run {
    /// What the reader has: files beside the commands.
    before: &'static str,
    /// Lines that are left out, and why.
    except: &'static [(&'static str, &'static str)],
    /// The end of a line that ends with another code than 0.
    ends_with: &'static [(&'static str, i32)],
    says: &'static [&'static str],
}

const fn says(says: &'static [&'static str]) -> Plan {
    Plan::Runs(Run { before: ":", except: &[], ends_with: &[], says })
}

const PROJECT: &str = "mkdir -p project && printf 'test:\\n\\techo tested | tee report.html\\n' \
    > project/Makefile && cp project/Makefile . && printf '#!/bin/sh\\necho built\\n' > build.sh \
    && chmod +x build.sh && chown -R 1000:1000 .";
const DOCKER: Plan = Plan::Not("needs Docker and an image of a registry: scripts/containers.sh");
const OTHER_TEST: Plan = Plan::Not("`the_guide_works_as_it_is_written` runs it");

/// The plans of a page, one for each block in its order.
fn plans(page: &str) -> Vec<Plan> {
    match page {
        "README.md" => vec![
            Plan::Not("builds the release; the server of this test takes its place"),
            Plan::Not("builds the release; serve.md has the same command"),
            says(&[r#""stdout":"hi\n""#]),
            says(&["hello"]),
            Plan::Not("it is what runs this"),
        ],
        "ash.md" => vec![
            Plan::Not("needs a checkout of Ash and its packages"),
            Plan::Not("needs the bridge of Ash: scripts/ash.sh"),
        ],
        "blaxel.md" => vec![says(&[r#""status":"running""#, "awake", r#""state":"auto""#])],
        "cli.md" => {
            vec![Plan::Runs(Run { before: PROJECT, says: &["1\n", "tested"], ..Run::default() })]
        }
        "containers.md" => vec![DOCKER],
        "docker.md" => vec![DOCKER, DOCKER, DOCKER, DOCKER, DOCKER],
        "images.md" => vec![
            Plan::Not("needs debootstrap with a network, Docker, and archives of the reader"),
            Plan::Not("needs the image that debootstrap makes"),
        ],
        "mcp.md" => vec![says(&[r#""result""#, "default"])],
        "processes.md" => vec![says(&["awake", "stopped"])],
        "python.md" => vec![Plan::Not("installs packages: scripts/python-sdk.sh does")],
        "rootless.md" => vec![
            Plan::Runs(Run { before: PROJECT, says: &["1\n", "tested"], ..Run::default() }),
            Plan::Not("needs a user's own systemd"),
            Plan::Not("changes the users of this machine"),
        ],
        "run.md" => vec![Plan::Runs(Run {
            before: PROJECT,
            except: &[("shoal run -t -- bash", "a person at a terminal ends it")],
            ends_with: &[("exit 3'", 3)],
            says: &["1\n", "HELLO", "built", "tested", r#""exit_code": 3"#],
        })],
        "secrets.md" => vec![
            Plan::Runs(Run {
                before: "gh() { echo token; }; echo key > id_ed25519",
                except: &[(
                    "shoal secret put GITHUB_TOKEN                    # asks for the value, without showing it",
                    "a person at a terminal types the value",
                )],
                says: &["deploy-key", "GITHUB_TOKEN"],
                ..Run::default()
            }),
            says(&[r#""scope":"key""#, r#"{"secrets":[{"name":"GITHUB_TOKEN""#]),
        ],
        "serve.md" => vec![
            Plan::Not("the server of this test takes its place"),
            says(&["1\n"]),
            says(&[r#""path":"fast""#, r#""stdout":"hi\n""#]),
            says(&["ci"]),
            says(&["live_sandboxes 0/8"]),
            says(&[]),
            says(&[]),
            Plan::Not(
                "needs a service of systemd: a test of encryption_at_rest.rs runs the command",
            ),
        ],
        "sessions.md" => {
            vec![OTHER_TEST, OTHER_TEST, says(&["pauses after 10 min without use", "none"])]
        }
        _ => Vec::new(),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn blocks(page: &str) -> Vec<String> {
    let folder = if page == "README.md" { "" } else { "docs/guides" };
    let text = std::fs::read_to_string(root().join(folder).join(page)).unwrap();
    let parts = text.split("\n```sh\n").skip(1);
    parts.map(|rest| rest.split("\n```").next().unwrap().to_owned()).collect()
}

/// What a reader has around the commands: a path with `shoal`, which is root's where `sudo` is
/// written. The server of the test takes the place of one that is to be started, and a command that
/// runs until it is interrupted is interrupted. The port of a forward may be in use on this machine.
fn surroundings(served: &TestServer) -> PathBuf {
    let place = served.scratch.0.join("reader");
    let bin = place.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let shoal = env!("CARGO_BIN_EXE_shoal");
    let wrapper = format!(
        "#!/bin/sh\ncase \" $* \" in\n\
         ' serve '*) exit 0;;\n\
         ' forward '*) timeout --signal=INT 2 {shoal} \"$@\" >forward 2>&1 || true\n\
             cat forward; grep -qE 'forwards to|cannot listen' forward;;\n\
         *' --follow '*) timeout --signal=INT 2 {shoal} \"$@\" || true;;\n\
         *) exec {shoal} \"$@\";;\nesac\n"
    );
    for (name, text) in [("shoal", wrapper.as_str()), ("sudo", "#!/bin/sh\nexec \"$@\"\n")] {
        let path = bin.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    place
}

/// The block with the addresses and places of this server.
fn here(block: &str, served: &TestServer) -> String {
    let address = std::fs::read_to_string(served.data().join("address")).unwrap();
    let address = address.lines().next().unwrap().trim_start_matches("http://");
    let backups = served.scratch.0.join("backups");
    std::fs::create_dir_all(&backups).unwrap();
    block
        .replace("127.0.0.1:7600", address)
        .replace("/var/lib/shoal", served.data().to_str().unwrap())
        .replace("/backups", backups.to_str().unwrap())
}

/// Fills in what the reader is asked to: ids that an earlier command of the block has printed.
fn filled_in(block: &str) -> String {
    let ids = "ids() { grep -o '\"id\":\"[^\"]*' \"$HOME/said\" | cut -c 7-; }; LEASE() { ids | head -1; }; \
               SANDBOX() { ids | sed -n 2p; }; KEY() { shoal key ls | awk '$2 == \"ci\" || $2 == \"bot\"' | \
               grep -oE '[0-9a-f-]{36}' | tail -1; }";
    let block = block.replace("/SANDBOX/", "/$(SANDBOX)/").replace("/LEASE", "/$(LEASE)");
    format!(
        "{ids}\n{}",
        block.replace("revoke KEY", "revoke $(KEY)").replace("limit KEY", "limit $(KEY)")
    )
}

fn run(page: &str, served: &TestServer, block: &str, run: &Run) {
    let place = surroundings(served);
    let mut block = filled_in(&here(block, served));
    for (line, why) in run.except {
        assert!(block.lines().any(|one| one == *line), "{page}: no line is {line:?}");
        println!("{page}: not run: {why}: {line}");
        block = block.replace(line, "");
    }
    for (end, code) in run.ends_with {
        assert!(block.contains(end), "{page}: no line ends with {end:?}");
        block = block.replace(end, &format!("{end} || test $? -eq {code}"));
    }
    // What is printed goes to a file, where later commands find the ids in it.
    let script = format!("{}\nexec > \"$HOME/said\"\n{block}\n", run.before);
    let path = format!("{}:{}", place.join("bin").display(), std::env::var("PATH").unwrap());
    let key = std::fs::read_to_string(served.data().join("admin.key")).unwrap();
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", &script]).current_dir(&place);
    command.env("PATH", path).env("SHOAL_DATA_DIR", served.data());
    command.env("HOME", &served.scratch.0).env("KEY", key.trim());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = output_of(finish(command.spawn().unwrap(), &[]));
    let text = std::fs::read(served.scratch.0.join("said")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(said.code, Some(0), "{page}: {said:?}\n{text}\n{block}\n{}", served.log());
    // A refusal is not what an example is for.
    assert!(!text.contains(r#""code":""#) && !text.contains(r#"{"error""#), "{page}: {text}");
    for words in run.says {
        assert!(text.contains(words), "{page}: {words:?} is not in {text}\n{said:?}");
    }
}

/// Runs the blocks of a page, each against a server that is started as the page says.
fn try_page(page: &str) {
    if !rustix::process::geteuid().is_root() {
        skipped("no root");
        return;
    }
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    // Another program may use the port in the examples, so `curl` connects to the real one.
    let config = format!("silent\nmax-time = 30\nconnect-to = \"localhost:8080:{address}\"\n");
    std::fs::write(scratch.0.join(".curlrc"), config).unwrap();
    let blocks = blocks(page);
    let serving = blocks.iter().flat_map(|block| block.lines());
    let serving =
        serving.filter_map(|line| line.trim_start_matches("sudo ").strip_prefix("shoal serve"));
    let flags =
        serving.map(|rest| rest.split('#').next().unwrap()).find(|rest| rest.contains("--blaxel"));
    let mut flags: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
    if !flags.is_empty() {
        flags.extend(["--blaxel-listen", &address]);
    }
    let served = TestServer::start_on(scratch, &flags);
    for (block, plan) in blocks.iter().zip(plans(page)) {
        match plan {
            Plan::Runs(plan) => run(page, &served, block, &plan),
            Plan::Not(why) => println!("{page}: not run: {why}:\n{block}\n"),
        }
    }
}

#[test]
fn every_example_of_a_guide_is_run_or_says_why_not() {
    let mut pages = vec!["README.md".to_owned()];
    for entry in std::fs::read_dir(root().join("docs/guides")).unwrap() {
        pages.push(entry.unwrap().file_name().into_string().unwrap());
    }
    for page in pages {
        let (blocks, plans) = (blocks(&page).len(), plans(&page));
        assert_eq!(blocks, plans.len(), "{page}: each block of commands needs a plan");
        let left_out = plans.iter().filter_map(|plan| match plan {
            Plan::Not(why) => Some(*why),
            Plan::Runs(_) => None,
        });
        assert!(left_out.into_iter().all(|why| why.len() > 10), "{page}: say why");
    }
}

#[test]
fn examples_of_the_readme_work_as_they_are_written() {
    try_page("README.md");
}

#[test]
fn examples_of_the_guide_to_blaxel_work_as_they_are_written() {
    try_page("blaxel.md");
}

#[test]
fn examples_of_the_guide_to_the_command_line_work_as_they_are_written() {
    try_page("cli.md");
}

#[test]
fn examples_of_the_guide_to_mcp_work_as_they_are_written() {
    try_page("mcp.md");
}

#[test]
fn examples_of_the_guide_to_processes_work_as_they_are_written() {
    try_page("processes.md");
}

#[test]
fn examples_of_the_guide_without_root_work_as_they_are_written() {
    try_page("rootless.md");
}

#[test]
fn examples_of_the_guide_to_run_work_as_they_are_written() {
    try_page("run.md");
}

#[test]
fn examples_of_the_guide_to_secrets_work_as_they_are_written() {
    try_page("secrets.md");
}

#[test]
fn examples_of_the_guide_to_serve_work_as_they_are_written() {
    try_page("serve.md");
}
