//! The direction between crates: who may use whom, and what a crate may bring in from outside.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::repo;
use crate::rust_text::{code_only, has_token};

/// A crate, the reason for its limits, and the limits. Tests of a crate may use anything.
struct Layer {
    name: &'static str,
    why: &'static str,
    /// The only dependencies from outside the workspace, where they are limited.
    outside: Option<&'static [&'static str]>,
    /// Dependencies, ours or not, that the crate may not have though the order would allow them.
    never: &'static [&'static str],
}

/// The order is the direction: a crate may use those above it.
const LAYERS: &[Layer] = &[
    // utoipa is an annotation: the schemas of the words, behind a feature.
    // zeroize clears the values of secrets from memory, which plain code cannot do reliably.
    layer("model", "it is words, without I/O").only(&[
        "serde",
        "thiserror",
        "utoipa",
        "uuid",
        "zeroize",
    ]),
    layer("kernel", "it decides, and does nothing else").only(&["uuid"]),
    layer("sim", ""),
    layer("wire", "it is the words of the API, for servers and clients")
        .only(&["base64", "jiff", "serde", "serde_json", "utoipa"])
        .never(&["kernel"]),
    layer("guest-protocol", "it is linked into the guest").never(&["tokio"]),
    layer("jail", "it runs in the launcher, which is single-threaded").never(&["tokio"]),
    layer("guest", "it is in every sandbox, small and single-threaded").never(&["tokio"]),
    layer("guest-image", ""),
    layer("tasks", "it starts tasks and knows none").only(&["tokio"]),
    layer("tar-stream", "it is a format, for code that waits and code that blocks").only(&[]),
    layer("workspaces", "it blocks, and is asked from threads of its own").never(&["tokio"]),
    layer("egress", "it faces the programs of sandboxes, and knows nothing but policies")
        .never(&["runtime", "store"]),
    layer("runtime", ""),
    layer("harness", "it speaks with programs in sandboxes, whatever isolates them"),
    layer("images", "it is blocking code, called off the async threads").never(&["tokio"]),
    layer("sealing", "it knows neither files nor tables").only(&[
        "chacha20poly1305",
        "getrandom",
        "sha2",
        "thiserror",
    ]),
    layer("store", ""),
    layer("engine", ""),
    layer("web", "it asks the engine, and knows no vendor").never(&["store", "runtime", "rmcp"]),
    layer("v1", "it asks the engine").never(&["store", "runtime"]),
    layer("ash", DIALECT).never(&["store", "runtime", "v1", "blaxel", "mcp"]),
    layer("blaxel", DIALECT).never(&["store", "runtime", "v1", "ash", "mcp"]),
    layer("mcp", DIALECT).never(&["store", "runtime", "v1", "ash", "blaxel"]),
    layer("api", "it puts the routes together, and asks the engine").never(&["store", "runtime"]),
    layer("client", ""),
    layer("command", "it knows no command"),
    layer("shoal", ""),
    layer("bench", "it measures servers from outside").never(&["engine", "api", "store"]),
    layer(TESTS, ""),
];

const TESTS: &str = "integration-tests";
const DIALECT: &str = "a dialect translates, asks the engine and knows no other dialect";
const TABLE: &str = "the table in tests/it/architecture.rs";

/// Dialects translate: what is kept, how much and for how long is decided by the engine.
const DIALECTS: &[&str] = &["ash", "blaxel", "mcp"];
/// What a dialect could keep things with itself, and what there is instead.
const KEEPS: &[(&str, &str)] = &[
    ("put_document", "`lock_named_documents`, `create_named_session` or `store_ended_session`"),
    ("remove_document", "`lock_named_documents` or `end_named_session`"),
    ("remove_documents", "`lock_named_documents` or `end_named_session`"),
    ("store", "the engine"),
    ("Store", "the engine"),
];

/// The simulator is a tool of tests: only they may use it.
const ONLY_FOR_TESTS: &str = "sim";

/// The feature that breaks the kernel on purpose, and the crates that may have a feature of this
/// name.
const FLAWS: &str = "flaws";
const FLAWS_IN: &[&str] = &["kernel", "sim"];

const fn layer(name: &'static str, why: &'static str) -> Layer {
    Layer { name, why, outside: None, never: &[] }
}

impl Layer {
    const fn only(self, outside: &'static [&'static str]) -> Self {
        Self { outside: Some(outside), ..self }
    }

    const fn never(self, never: &'static [&'static str]) -> Self {
        Self { never, ..self }
    }
}

struct Package {
    name: String,
    manifest: String,
    /// What is linked into the product: dependencies of tests are left out.
    uses: Vec<Use>,
    features: BTreeMap<String, Vec<String>>,
}

struct Use {
    name: String,
    features: Vec<String>,
}

#[test]
fn crates_point_in_one_direction() -> Result<()> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(repo::root())
        .output()
        .context("start cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let packages = packages(&serde_json::from_slice(&output.stdout)?)?;
    ensure!(packages.iter().any(|package| package.name == "kernel"), "no kernel in the workspace");
    repo::assert_none(&violations(&packages));
    Ok(())
}

fn violations(packages: &[Package]) -> Vec<String> {
    packages.iter().flat_map(|package| [direction(package), flaws(package)].concat()).collect()
}

fn direction(package: &Package) -> Vec<String> {
    let name = &package.name;
    let Some(place) = LAYERS.iter().position(|layer| layer.name == name) else {
        return vec![format!("`{name}` is a new crate: add it to {TABLE} with a reason")];
    };
    let layer = &LAYERS[place];
    let mut found = Vec::new();
    if name != TESTS && !package.manifest.ends_with(&format!("/crates/{name}/Cargo.toml")) {
        found.push(format!("`{name}` must live in crates/{name}: a folder is a crate"));
    }
    for used in package.uses.iter().map(|used| used.name.as_str()) {
        let ours = LAYERS.iter().position(|layer| layer.name == used);
        let refusal = match (ours, layer.outside) {
            _ if layer.never.contains(&used) => format!("{}, so it may not", layer.why),
            _ if used == ONLY_FOR_TESTS && name != TESTS => {
                "only tests use it: make it a dev-dependency".to_owned()
            }
            (Some(at), _) if at >= place => {
                format!(
                    "`{used}` is not above it: move the shared part up, or turn the call around"
                )
            }
            (None, Some(outside)) if !outside.contains(&used) => {
                format!("{}, so it uses only {outside:?} from outside", layer.why)
            }
            _ => continue,
        };
        found.push(format!("`{name}` depends on `{used}`: {refusal} (see {TABLE})"));
    }
    found
}

/// Whatever switches the flaws on must itself be a feature called `flaws`, of the kernel or the
/// simulator; then it is enough that nothing in the product asks for a feature of that name.
fn flaws(package: &Package) -> Vec<String> {
    let name = &package.name;
    let is_flaws = |feature: &str| feature.rsplit('/').next() == Some(FLAWS);
    let mut found = Vec::new();
    for (feature, enables) in &package.features {
        let may = feature == FLAWS && FLAWS_IN.contains(&name.as_str());
        if !may && (feature == FLAWS || enables.iter().any(|enabled| is_flaws(enabled))) {
            found.push(format!("`{name}`: its feature `{feature}` may not switch on `{FLAWS}`"));
        }
    }
    for used in package.uses.iter().filter(|used| used.features.iter().any(|f| is_flaws(f))) {
        found.push(format!(
            "`{name}` switches on `{FLAWS}` of `{}`: the product never does, only dev-dependencies",
            used.name
        ));
    }
    found
}

#[test]
fn dialects_keep_nothing_by_themselves() -> Result<()> {
    let mut found = Vec::new();
    for name in DIALECTS {
        let files = repo::files(&[&format!("crates/{name}/src")], &[".rs"])?;
        ensure!(!files.is_empty(), "there is no dialect `{name}`");
        found.extend(files.iter().flat_map(|file| kept(&file.path, &file.text)));
    }
    repo::assert_none(&found);
    Ok(())
}

/// What a source of a dialect keeps things with, outside of its tests.
fn kept(path: &str, source: &str) -> Vec<String> {
    let code = without_tests(&code_only(source));
    let used = KEEPS.iter().filter(|(word, _)| has_token(&code, word));
    let finding = |(word, instead): &(&str, &str)| {
        format!("{path} uses `{word}`: {DIALECT}; there is {instead} (see {TABLE})")
    };
    used.map(finding).collect()
}

/// The code without items that are only there for tests.
fn without_tests(code: &str) -> String {
    let mut rest = code;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        kept.push_str(before);
        let mut depth = 0_u32;
        let end = after.find(|c| {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && (c == '}' || c == ';')
        });
        rest = end.map_or("", |end| &after[end + 1..]);
    }
    kept + rest
}

fn packages(metadata: &Value) -> Result<Vec<Package>> {
    list(&metadata["packages"])?.iter().map(package).collect()
}

fn package(value: &Value) -> Result<Package> {
    let dependencies = list(&value["dependencies"])?.iter();
    let linked = dependencies.filter(|dependency| dependency["kind"] != "dev");
    let features = value["features"].as_object().context("features are an object")?.iter();
    Ok(Package {
        name: text(&value["name"])?,
        manifest: text(&value["manifest_path"])?,
        uses: linked
            .map(|used| Ok(Use { name: text(&used["name"])?, features: texts(&used["features"])? }))
            .collect::<Result<_>>()?,
        features: features.map(|(k, v)| Ok((k.clone(), texts(v)?))).collect::<Result<_>>()?,
    })
}

fn list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().with_context(|| format!("not a list: {value}"))
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().with_context(|| format!("not a string: {value}"))?.to_owned())
}

fn texts(value: &Value) -> Result<Vec<String>> {
    list(value)?.iter().map(text).collect()
}

#[test]
fn each_wrong_direction_is_refused() -> Result<()> {
    let uses = |name: &str| json!([{"name": name, "kind": null, "features": []}]);
    let builds = |name: &str| json!([{"name": name, "kind": "build", "features": []}]);
    let tests = |name: &str| json!([{"name": name, "kind": "dev", "features": [FLAWS]}]);
    let flawed = |name: &str| json!([{"name": name, "kind": null, "features": [FLAWS]}]);
    let none = json!({});
    let cases = [
        ("kernel", uses("model"), &none, None),
        ("kernel", uses("uuid"), &none, None),
        ("kernel", uses("tokio"), &none, Some("does nothing else")),
        ("kernel", tests("sim"), &none, None),
        ("kernel", uses("sim"), &none, Some("make it a dev-dependency")),
        ("shoal", uses("sim"), &none, Some("make it a dev-dependency")),
        (TESTS, uses("sim"), &none, None),
        ("model", uses("kernel"), &none, Some("`kernel` is not above it")),
        ("model", builds("kernel"), &none, Some("`kernel` is not above it")),
        ("model", uses("tokio"), &none, Some("words, without I/O")),
        ("guest", uses("tokio"), &none, Some("single-threaded")),
        ("engine", uses("tokio"), &none, None),
        ("api", uses("engine"), &none, None),
        ("v1", uses("store"), &none, Some("it asks the engine")),
        ("ash", uses("web"), &none, None),
        ("ash", uses("blaxel"), &none, Some("knows no other dialect")),
        ("web", uses("ash"), &none, Some("`ash` is not above it")),
        ("extra", uses("model"), &none, Some("add it to the table")),
        ("engine", flawed("kernel"), &none, Some("the product never does")),
        ("sim", uses("kernel"), &json!({"flaws": ["kernel/flaws"]}), None),
        ("sim", uses("kernel"), &json!({"default": ["flaws"]}), Some("`default` may not")),
        ("engine", uses("kernel"), &json!({"x": ["kernel?/flaws"]}), Some("`x` may not")),
        ("engine", uses("kernel"), &json!({"flaws": []}), Some("`flaws` may not")),
    ];
    for (name, dependencies, features, expected) in cases {
        let manifest = format!("/crates/{name}/Cargo.toml");
        let value = json!({
            "name": name, "manifest_path": manifest,
            "dependencies": dependencies, "features": features,
        });
        let found = violations(&packages(&json!({"packages": [value]}))?).join("\n");
        match expected {
            None => assert_eq!(found, "", "{name}: {dependencies}"),
            Some(part) => assert!(found.contains(part), "{name}: {dependencies} gave {found:?}"),
        }
    }
    let elsewhere = json!({
        "name": "model", "manifest_path": "/lib/model/Cargo.toml", "dependencies": [], "features": {},
    });
    let found = violations(&[package(&elsewhere)?]).join("\n");
    assert!(found.contains("must live in crates/model"), "{found}");
    Ok(())
}

#[test]
fn a_dialect_that_keeps_something_is_found() {
    for (source, expected) in [
        ("fn a() { engine.put_document(document); }", Some("`put_document`")),
        ("fn a() { engine.remove_document(KIND); }", Some("`remove_document`")),
        ("use store::Batch;", Some("`store`")),
        ("fn a(store: &dyn Store) {}", Some("`Store`")),
        ("#[cfg(test)]\nuse store::Batch;\nuse store::Store;", Some("`store`")),
        ("#[cfg(test)]\nmod tests { fn a() { b.put_document(); } }\nfn c() {}", None),
        ("#[cfg(test)]\nuse store::Batch;\nfn a() {}", None),
        ("// put_document\nfn a() { b(\"store\"); stores(); }", None),
        ("fn a() { engine.lock_named_documents(KIND, caller); }", None),
    ] {
        let found = kept("crates/ash/src/a.rs", source).join("\n");
        match expected {
            None => assert_eq!(found, "", "{source}"),
            Some(part) => assert!(found.contains(part), "{source} gave {found:?}"),
        }
    }
}
