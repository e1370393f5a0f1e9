//! Layers, sources and errors of the configuration as a whole, in tables.

use std::path::{Path, PathBuf};

use clap::Parser as _;

use super::layers::{check, load};
use super::*;

#[derive(clap::Parser)]
struct Typed {
    #[command(flatten)]
    overrides: Overrides,
}

/// A directory that is removed afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shoal-config-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn context(env: &[(&str, &str)]) -> HostContext {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()));
    HostContext { root: false, cores: 8, env: env.collect() }
}

fn typed(words: &[&str]) -> Overrides {
    Typed::try_parse_from(["x"].iter().chain(words)).unwrap().overrides
}

fn loaded(words: &[&str], env: &[(&str, &str)]) -> Result<Effective, String> {
    load(&typed(words), &context(env)).map_err(|error| format!("{error} | {}", error.remedy))
}

fn source(effective: &Effective, key: &str) -> String {
    effective.values[key].source.to_string()
}

#[test]
fn config_layers_override_in_order_and_are_named() {
    let scratch = Scratch::new("layers");
    let file = scratch.file(
        "a.toml",
        "[server]\nlisten = \"127.0.0.1:1\"\n\n[node]\nmax_live = 11\nmax_sandboxes = 12\n",
    );
    let env = [
        ("SHOAL_CONFIG", file.as_str()),
        ("SHOAL_LISTEN", "127.0.0.1:2"),
        ("SHOAL_NODE_MAX_LIVE", "21"),
        ("SHOAL_DATA_DIR", "/nowhere/data"),
        ("SHOAL_HOSTS", "a.example, b.example"),
    ];
    let effective = loaded(&["--listen", "127.0.0.1:3"], &env).unwrap();
    let config = &effective.config;
    assert_eq!(config.server.listen.port(), 3);
    assert_eq!((config.node.max_live, config.node.max_sandboxes), (21, 12));
    assert_eq!(config.server.hosts, ["a.example", "b.example"]);
    assert_eq!((config.server.workers, config.log.level), (4, LogLevel::Info));
    for (key, expected) in [
        ("server.listen", "flag --listen".to_owned()),
        ("node.max_live", "env SHOAL_NODE_MAX_LIVE".to_owned()),
        ("node.max_sandboxes", format!("{file}:6")),
        ("node.wait_ms", "default".to_owned()),
        ("server.data_dir", "env SHOAL_DATA_DIR".to_owned()),
    ] {
        assert_eq!(source(&effective, key), expected, "{key}");
    }
    assert_eq!(effective.file.as_deref(), Some(Path::new(&file)));
}

#[test]
fn config_file_is_the_named_or_the_found_one() {
    let scratch = Scratch::new("found");
    let named = scratch.file("named.toml", "[log]\nlevel = \"error\"\n");
    let variable = scratch.file("variable.toml", "[log]\nlevel = \"warn\"\n");
    scratch.file("shoal.toml", "[log]\nlevel = \"debug\"\n");
    let data_dir = scratch.0.to_str().unwrap();
    let both = [("SHOAL_CONFIG", variable.as_str()), ("SHOAL_DATA_DIR", data_dir)];
    let cases = [
        (vec!["--config", &named], &both[..], LogLevel::Error),
        (vec![], &both[..], LogLevel::Warn),
        (vec![], &both[1..], LogLevel::Debug),
        (vec!["--data-dir", data_dir], &[], LogLevel::Debug),
    ];
    for (words, env, expected) in cases {
        assert_eq!(loaded(&words, env).unwrap().config.log.level, expected, "{words:?} {env:?}");
    }
    let missing = loaded(&["--config", "/no/such.toml"], &[]).unwrap_err();
    assert!(missing.starts_with("--config: cannot read /no/such.toml"), "{missing}");
    let missing = loaded(&[], &[("SHOAL_CONFIG", "/no/such.toml")]).unwrap_err();
    assert!(missing.starts_with("SHOAL_CONFIG: cannot read"), "{missing}");
}

#[test]
fn config_file_in_a_data_dir_names_no_other_one() {
    let scratch = Scratch::new("away");
    let data_dir = scratch.0.to_str().unwrap();
    let path = scratch.file("shoal.toml", "[server]\ndata_dir = \"/elsewhere\"\n");
    let error = loaded(&["--data-dir", data_dir], &[]).unwrap_err();
    assert!(error.starts_with(&format!("{path}:2:1: server.data_dir: ")), "{error}");
    scratch.file("shoal.toml", &format!("[server]\ndata_dir = \"{data_dir}\"\n"));
    loaded(&["--data-dir", data_dir], &[]).unwrap();
}

#[test]
fn config_reads_variables_of_ash_and_ours_override_them() {
    let ash = [("ASH_MAX_SANDBOXES", "7"), ("ASH_IDLE_TIMEOUT_MS", "9000")];
    let effective = loaded(&[], &ash).unwrap();
    let node = &effective.config.node;
    assert_eq!((node.max_sandboxes, node.idle_timeout_ms), (7, 9000));
    assert_eq!(source(&effective, "node.max_sandboxes"), "env ASH_MAX_SANDBOXES");
    let both = [ash[0], ("SHOAL_NODE_MAX_SANDBOXES", "8")];
    assert_eq!(loaded(&[], &both).unwrap().config.node.max_sandboxes, 8);
}

#[test]
fn config_reads_other_variables_of_ash_only_with_ash() {
    let ash = [
        ("ASH_PORT", "4242"),
        ("ASH_DATA_DIR", "/srv/ash"),
        ("ASH_SANDBOX_MEMORY_MB", "512"),
        ("ASH_BRIDGE_ENTRY", "/usr/lib/bridge.js"),
    ];
    let unasked = loaded(&[], &ash).unwrap().config;
    assert_eq!((unasked.ash.listen, unasked.ash.memory_mb), (None, 2048));
    assert_ne!(unasked.server.data_dir, Path::new("/srv/ash"));
    let effective = loaded(&["--ash"], &ash).unwrap();
    let config = &effective.config;
    assert_eq!(config.ash.listen, Some("127.0.0.1:4242".parse().unwrap()));
    assert_eq!(config.server.data_dir, Path::new("/srv/ash"));
    assert_eq!(config.ash.memory_mb, 512);
    assert_eq!(config.ash.bridge_entry.as_deref(), Some("/usr/lib/bridge.js"));
    for (key, expected) in [
        ("ash.listen", "env ASH_PORT"),
        ("server.data_dir", "env ASH_DATA_DIR"),
        ("ash.memory_mb", "env ASH_SANDBOX_MEMORY_MB"),
        ("ash.bridge_entry", "env ASH_BRIDGE_ENTRY"),
    ] {
        assert_eq!(source(&effective, key), expected);
    }
}

#[test]
fn config_address_of_ash_has_an_order() {
    let listen = |words: &[&str], env: &[(&str, &str)]| {
        let effective = loaded(words, env).unwrap();
        let address = effective.config.ash.listen.map(|address| address.to_string());
        (address.unwrap_or_default(), source(&effective, "ash.listen"))
    };
    let expected = |address: &str, from: &str| (address.to_owned(), from.to_owned());
    let both = [("ASH_HOST", "0.0.0.0"), ("ASH_PORT", "5")];
    let ours = [both[0], ("SHOAL_ASH_LISTEN", "127.0.0.1:6")];
    assert_eq!(listen(&["--ash"], &[]), expected("127.0.0.1:4100", "flag --ash"));
    assert_eq!(listen(&["--ash"], &both), expected("0.0.0.0:5", "env ASH_PORT"));
    assert_eq!(listen(&["--ash"], &both[..1]), expected("0.0.0.0:4100", "env ASH_HOST"));
    let here = [("ASH_HOST", "localhost")];
    assert_eq!(listen(&["--ash"], &here), expected("127.0.0.1:4100", "env ASH_HOST"));
    let six = [("ASH_HOST", "::1")];
    assert_eq!(listen(&["--ash"], &six), expected("[::1]:4100", "env ASH_HOST"));
    assert_eq!(listen(&["--ash"], &ours), expected("127.0.0.1:6", "env SHOAL_ASH_LISTEN"));
    assert_eq!(listen(&["--ash", "127.0.0.1:7"], &ours), expected("127.0.0.1:7", "flag --ash"));
    // What Kubernetes sets for a service that is called `ash`.
    let service = [("ASH_PORT", "tcp://10.0.0.1:4100"), ("ASH_HOST", "0.0.0.0")];
    assert_eq!(listen(&["--ash"], &service), expected("0.0.0.0:4100", "env ASH_HOST"));
    let wrong = loaded(&["--ash"], &[("ASH_PORT", "many")]).unwrap_err();
    assert!(wrong.starts_with("ASH_PORT: ash.listen: "), "{wrong}");
}

#[test]
fn config_gives_blaxel_an_address_on_request() {
    let of = |words: &[&str], env: &[(&str, &str)]| {
        let effective = loaded(words, env).unwrap();
        let blaxel = effective.config.blaxel;
        (blaxel.listen.map(|address| address.to_string()), blaxel.template, blaxel.keyless)
    };
    let expected = |address: Option<&str>, template: &str, keyless| {
        (address.map(str::to_owned), template.to_owned(), keyless)
    };
    assert_eq!(of(&[], &[]), expected(None, "default", false));
    assert_eq!(of(&["--blaxel", "web"], &[]), expected(Some("127.0.0.1:8080"), "web", false));
    let env = [("SHOAL_BLAXEL_LISTEN", "127.0.0.1:9")];
    assert_eq!(of(&["--blaxel", "web"], &env), expected(Some("127.0.0.1:9"), "web", false));
    let words = ["--blaxel", "web", "--blaxel-listen", "[::1]:7", "--blaxel-keyless"];
    assert_eq!(of(&words, &env), expected(Some("[::1]:7"), "web", true));
    let words = ["--blaxel", "web", "--blaxel-listen", "0.0.0.0:7", "--blaxel-keyless"];
    let wrong = loaded(&words, &[]).unwrap_err();
    assert!(wrong.starts_with("--blaxel-keyless: blaxel.keyless: 0.0.0.0:7 is"), "{wrong}");
}

/// Flags, variables, and the expected error.
type Case = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static str);

#[test]
fn config_errors_name_the_variable_or_the_flag() {
    let cases: &[Case] = &[
        (
            &[],
            &[("SHOAL_NODE_MAX_LIVE", "many")],
            "SHOAL_NODE_MAX_LIVE: node.max_live: \"many\" is",
        ),
        (&[], &[("SHOAL_NODE_MAX_LIVE", "-3")], "SHOAL_NODE_MAX_LIVE: node.max_live: \"-3\": "),
        (&[], &[("SHOAL_NODE_MAX_LIVE", "0")], "SHOAL_NODE_MAX_LIVE: node.max_live: must be above"),
        (&[], &[("ASH_MAX_SANDBOXES", "x")], "ASH_MAX_SANDBOXES: node.max_sandboxes: \"x\" is"),
        (
            &[],
            &[("SHOAL_LOG_FORMAT", "xml")],
            "SHOAL_LOG_FORMAT: log.format: \"xml\": unknown vari",
        ),
        (&["--listen", "here"], &[], "--listen: server.listen: \"here\": "),
        (&["--store", "mysql"], &[], "--store: store.kind: \"mysql\": unknown variant"),
        (&["--set", "node.max_live=x"], &[], "--set node.max_live: node.max_live: \"x\" is"),
        (&["--set", "node.maxlive=1"], &[], "--set node.maxlive: node.maxlive: there is no"),
        (
            &["--set", "server.hosts=a,b/c"],
            &[],
            "--set server.hosts: server.hosts.1: \"b/c\" is not",
        ),
        (&["--set", "server.cors_origins=*"], &[], "--set server.cors_origins: server.cors_orig"),
    ];
    for (words, env, expected) in cases {
        let error = loaded(words, env).unwrap_err();
        assert!(error.starts_with(expected), "{words:?} {env:?} gave {error:?}");
        assert!(!error.ends_with("| "), "no remedy: {error}");
    }
    let guessed = loaded(&["--set", "node.maxlive=1"], &[]).unwrap_err();
    assert!(guessed.ends_with("did you mean node.max_live?"), "{guessed}");
}

#[test]
fn config_refuses_impossible_values_at_their_line() {
    let scratch = Scratch::new("never");
    let cases = [
        ("[node]\nmax_live = 0\n", "2:1: node.max_live: must be above 0"),
        ("[node.deadlines]\nkill_ms = 0\n", "2:1: node.deadlines.kill_ms: must be"),
        ("[server]\nhosts = [\"a\",\n \"http://b\"]\n", "3:2: server.hosts.1: "),
        ("[server]\nworkers = 0\n", "2:1: server.workers: "),
        (
            "[[templates]]\nname = \"a\"\n[templates.pool]\npool_size = 0\nmax_overflow = 0\n",
            "4:1: templates.0.pool.pool_size: ",
        ),
        ("[[templates]]\nname = \"a\"\n[[templates]]\nname = \"a\"\n", "4:1: templates.1.name: "),
    ];
    for (text, expected) in cases {
        let path = scratch.file("wrong.toml", text);
        let error = check(Path::new(&path), &context(&[])).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{path}:{expected}")), "{text:?} gave {error:?}");
    }
}

fn refused_at_start(scratch: &Scratch, cases: &[(String, &str)]) {
    for (text, expected) in cases {
        let path = scratch.file("wrong.toml", text);
        let checked = check(Path::new(&path), &context(&[])).expect("every value is valid alone");
        let error = checked.refuse_unstartable().expect_err(text).to_string();
        assert!(error.starts_with(&format!("{path}:{expected}")), "{text:?} gave {error:?}");
    }
}

#[test]
fn config_check_refuses_networks_that_a_start_would_refuse() {
    let scratch = Scratch::new("unstartable-networks");
    let template = |more: &str| format!("[[templates]]\nname = \"a\"\n{more}\n");
    let cases = [
        (
            format!(
                "{}[egress]\nenabled = false\n",
                template("network = { allow = [\"example.org\"] }")
            ),
            "3:1: templates.0.network: egress.enabled is false, so sandboxes have loopback only",
        ),
        (
            format!(
                "{}[oci]\nprograms = [\"runsc\"]\n",
                template("runtime = \"runsc\"\nnetwork = \"open\"")
            ),
            "4:1: templates.0.network: sandboxes of runsc have no network that a policy reaches",
        ),
        (
            "[egress]\nupstream_ca = \"/no/such.pem\"\n".to_owned(),
            "2:1: egress.upstream_ca: cannot read /no/such.pem: No such file",
        ),
        (
            "[egress]\nupstream_ca = \"/etc/passwd\"\n".to_owned(),
            "2:1: egress.upstream_ca: cannot use /etc/passwd: it has no certificate; name a file",
        ),
    ];
    refused_at_start(&scratch, &cases);
}

#[test]
fn config_check_refuses_what_a_start_would_refuse() {
    let scratch = Scratch::new("unstartable");
    let template = |more: &str| format!("[[templates]]\nname = \"a\"\n{more}\n");
    let mount = "mounts = [{ host_path = \"/etc\", path = \"/data\" }]";
    let cases = [
        (
            "[server]\nlisten = \"127.0.0.1:1\"\n[ash]\nlisten = \"127.0.0.1:1\"\n".to_owned(),
            "4:1: ash.listen: 127.0.0.1:1 is server.listen already",
        ),
        (
            "[mounts]\nroots = [\"/\",\n\"/no/such\"]\n".to_owned(),
            "3:1: mounts.roots.1: cannot use /no/such: ",
        ),
        (
            "[mounts]\nroots = [\"/etc/passwd\"]\n".to_owned(),
            "2:10: mounts.roots.0: cannot use /etc/passwd: not a directory",
        ),
        (template(mount), "1:1: templates.0: mounts: this server mounts nothing"),
        (
            format!("{}[mounts]\nroots = [\"/usr\"]\n", template(mount)),
            "1:1: templates.0: mounts[0].host_path: /etc is not beneath mounts.roots",
        ),
        (
            template("root = { directory = \"rootfs\" }"),
            "1:1: templates.0: root: this server serves no directories",
        ),
        (
            format!(
                "{}[native]\ndirectories = [\"/usr\"]\n",
                template("root = { directory = \"no-such\" }")
            ),
            "1:1: templates.0: root: no directory \"no-such\" exists",
        ),
        (
            format!("{}[docker]\nenabled = \"no\"\n", template("runtime = \"docker\"")),
            "3:1: templates.0.runtime: docker.enabled is no",
        ),
        (
            format!("{}[oci]\nprograms = [\"runc\"]\n", template("runtime = \"crun\"")),
            "3:1: templates.0.runtime: oci.programs does not name crun",
        ),
        (
            "[store]\nkind = \"memory\"\n[node]\ntemplates = [\"default\",\n\"b\"]\n".to_owned(),
            "5:1: node.templates.1: there is no template b",
        ),
        (
            "[ash]\nlisten = \"127.0.0.1:2\"\nbridge_entry = \"--eval\"\n".to_owned(),
            "3:1: ash.bridge_entry: ",
        ),
    ];
    refused_at_start(&scratch, &cases);
    let fine = "[store]\nkind = \"memory\"\n[node]\ntemplates = [\"default\"]\n";
    let fine = check(Path::new(&scratch.file("fine.toml", fine)), &context(&[])).unwrap();
    assert_eq!(fine.refuse_unstartable(), Ok(()));
}

/// A machine on which workspaces are on disk by default.
fn on_disk(template: &Template) -> Result<model::Placed, String> {
    let limits = model::HardLimits::FileSystem("project quota");
    model::placed(template, Ok(&limits)).map_err(|refusal| refusal.to_string())
}

#[test]
fn config_shows_what_an_unset_value_means() {
    let scratch = Scratch::new("open");
    let plain = loaded(&[], &[]).unwrap();
    assert_eq!(plain.config.templates, None);
    let text = show::as_toml(&plain, &on_disk);
    assert!(text.contains("# default: workspace on disk, limit hard: workspace.kind"), "{text}");
    let again = check(Path::new(&scratch.file("again.toml", &text)), &context(&[])).unwrap();
    assert_eq!(again.config.templates, None, "{text}");
    let json = show::as_json(&plain, &on_disk);
    assert_eq!(json["templates"][0]["effective"]["workspace"]["kind"], "disk");
    assert_eq!(json["templates"][0]["value"]["workspace"].get("kind"), None);
    // Another setting of the same template moves nothing.
    let pool = "[[templates]]\nname = \"default\"\n[templates.pool]\npool_size = 3\n";
    let changed = check(Path::new(&scratch.file("pool.toml", pool)), &context(&[])).unwrap();
    let text = show::as_toml(&changed, &on_disk);
    assert!(text.contains("# default: workspace on disk"), "{text}");
    assert!(!text.contains("\nkind = \"memory\""), "{text}");
    // A value that is set is shown as it is.
    let said = "[[templates]]\nname = \"default\"\nworkspace = { kind = \"memory\" }\n";
    let said = check(Path::new(&scratch.file("said.toml", said)), &context(&[])).unwrap();
    let text = show::as_toml(&said, &on_disk);
    assert!(text.contains("# default: workspace in memory, limit hard\n"), "{text}");
}

#[test]
fn config_output_is_a_valid_file() {
    let scratch = Scratch::new("shown");
    let file = scratch.file(
        "a.toml",
        "[node]\nmemory_budget_mb = 4096\n[log]\nlevel = \"debug\"\n\
         [[templates]]\nname = \"py\"\nruntime = \"runsc\"\n[templates.limits]\npids = 9\n\
         [[templates]]\nname = \"b\"\n",
    );
    let effective =
        loaded(&["--config", &file, "--set", "server.hosts=a"], &[("HOME", "/h")]).unwrap();
    let text = show::as_toml(&effective, &on_disk);
    let again = scratch.file("again.toml", &text);
    let reread = check(Path::new(&again), &context(&[])).unwrap();
    assert_eq!(reread.config, effective.config, "{text}");
    for expected in [
        "# default".to_owned(),
        format!("# {file}:2"),
        "# flag --set server.hosts".to_owned(),
        format!("[[templates]]  # {file}:5"),
    ] {
        assert!(text.contains(&expected), "{expected} is missing:\n{text}");
    }
    assert!(text.starts_with("[server]\n"), "{text}");
    let json = show::as_json(&effective, &on_disk);
    assert_eq!(json["values"]["log.level"]["value"], "debug");
    assert_eq!(json["values"]["node.max_live"]["source"], "default");
    assert_eq!(json["templates"][1]["value"]["name"], "b");
    let unset = show::as_toml(&loaded(&[], &[]).unwrap(), &on_disk);
    assert!(unset.contains("# memory_budget_mb is not set\n"), "{unset}");
}

#[test]
fn config_reports_unknown_variables() {
    let effective = loaded(&[], &[("SHOAL_LISTN", "x"), ("SHOAL_SERVICE_HOST", "y")]).unwrap();
    assert_eq!(effective.unknown_variables, ["SHOAL_LISTN"]);
}

#[test]
fn config_names_variables_of_ash_that_have_no_effect() {
    let ineffective = [
        "ALLOWED_ORIGINS",
        "ANTHROPIC_API_KEY",
        "ASH_CREDENTIAL_KEY",
        "ASH_DATABASE_URL",
        "ASH_MODE",
        "ASH_OF_LATER",
        "ASH_RUNNER_ID",
        "ASH_SNAPSHOT_URL",
    ];
    let mut env: Vec<_> = ineffective.iter().map(|name| (*name, "x")).collect();
    env.extend([
        ("ASH_API_KEY", "k"),
        ("ASH_CLOUD_URL", ""),
        ("ASH_MAX_SANDBOXES", "7"),
        ("ASH_PORT", "4242"),
        ("ASH_PORT_4100_TCP", "tcp://10.0.0.1:4100"),
        ("ASH_REAL_SDK", "1"),
        ("ASH_SERVICE_HOST", "10.0.0.1"),
    ]);
    let lines = loaded(&["--ash"], &env).unwrap().ash_without_effect;
    let named: Vec<_> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(named, ineffective);
    assert!(lines.iter().all(|line| line.contains("has no effect: ")), "{lines:?}");
    let passed = ["--ash", "--set", "ash.pass_env=ANTHROPIC_API_KEY"];
    let lines = loaded(&passed, &env).unwrap().ash_without_effect;
    assert!(!lines.iter().any(|line| line.starts_with("ANTHROPIC_")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("ASH_REAL_SDK ")), "{lines:?}");
    env[4] = ("ASH_MODE", "standalone");
    let lines = loaded(&["--ash"], &env).unwrap().ash_without_effect;
    assert!(!lines.iter().any(|line| line.starts_with("ASH_MODE ")), "{lines:?}");
    let unasked = loaded(&[], &env).unwrap().ash_without_effect;
    assert!(unasked.is_empty(), "they are meant for Ash: {unasked:?}");
}

#[test]
fn config_ignores_empty_variables() {
    let effective = loaded(&[], &[("SHOAL_LISTEN", ""), ("SHOAL_CONFIG", "")]).unwrap();
    assert_eq!(source(&effective, "server.listen"), "default");
}
