//! Root filesystems that were made to trap the launcher that mounts in them: places that are links
//! out of the root, files where directories should be, devices, set-user-id programs, names that
//! look like options. Such a root is refused, or its sandbox is like any other; the host is as
//! before.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use runtime::{ExecSpec, Sandbox, Users};

use super::host_entry::names_in;
use crate::native::node::{Node, needs, on_node};

/// The places that a sandbox has of its own, and some that programs trust.
const PLACES: &[&str] = &[
    "proc",
    "sys",
    "dev",
    "dev/null",
    "dev/pts",
    "dev/shm",
    "dev/ptmx",
    "dev/console",
    "tmp",
    "run",
    "run/empty",
    "run/nothing",
    "workspace",
    "etc",
    "etc/mtab",
    "etc/passwd",
    "etc/resolv.conf",
    "var",
    "var/tmp",
    "var/run",
    "home",
    "root",
    "usr",
    "lib",
    "proc/self",
    "proc/sys",
];

/// What is at each place of every sandbox, by the number of its file system.
const TYPES: &[(&str, &str)] = &[
    ("/proc", "directory 9fa0"),
    ("/proc/sys", "directory 9fa0"),
    ("/tmp", "directory 1021994"),
    ("/workspace", "directory 1021994"),
    ("/dev/shm", "directory 1021994"),
    ("/dev/pts", "directory 1cd1"),
];

/// Files that tell of the host, and must be masked whatever the root does.
const MASKED: &[&str] = &["/proc/keys", "/proc/timer_list", "/proc/kmsg", "/proc/sysrq-trigger"];

/// Roots beneath one directory, and a directory of the host that none of them may reach.
struct Trap<'a> {
    node: &'a Node,
    tool: PathBuf,
    outside: PathBuf,
}

impl<'a> Trap<'a> {
    fn lay(node: &'a Node) -> Result<Self> {
        let (tool, outside) = (node.directory().join("tool"), node.directory().join("outside"));
        std::fs::create_dir_all(outside.join("self"))?;
        std::fs::write(outside.join("canary"), "canary of the host")?;
        let source = node.directory().join("tool.c");
        std::fs::write(&source, include_str!("tool.c"))?;
        let made = std::process::Command::new("/usr/bin/cc")
            .args(["-static", "-O1", "-o"])
            .args([&tool, &source])
            .output()?;
        ensure!(made.status.success(), "{made:?}");
        Ok(Self { node, tool, outside })
    }

    /// A root with nothing but the tool.
    fn root(&self, name: &str) -> Result<PathBuf> {
        let root = self.node.root_directories().join(name);
        std::fs::create_dir_all(root.join("bin"))?;
        std::fs::copy(&self.tool, root.join("bin/tool"))?;
        Ok(root)
    }

    /// Launches from it. None: it was refused, which is as good.
    async fn sandbox(&self, name: &str) -> Result<Option<Arc<dyn Sandbox>>> {
        match self.node.sandbox_from(name).await {
            Ok(sandbox) => Ok(Some(sandbox)),
            Err(error) => {
                ensure!(error.downcast_ref::<runtime::RuntimeError>().is_some(), "{error:?}");
                Ok(None)
            }
        }
    }

    async fn tool(&self, sandbox: &Arc<dyn Sandbox>, arguments: &[&str]) -> Result<Vec<String>> {
        let argv = ["/bin/tool"].into_iter().chain(arguments.iter().copied());
        let ran = self.node.run(sandbox, ExecSpec::argv(argv)).await?;
        ensure!(ran.exit.success(), "{arguments:?}: {ran:?}");
        Ok(String::from_utf8_lossy(&ran.stdout).lines().map(str::to_owned).collect())
    }

    /// The sandbox is like any other, and nothing happened outside.
    async fn nothing_happened(&self, sandbox: &Arc<dyn Sandbox>) -> Result<()> {
        for (place, expected) in TYPES {
            let found = self.tool(sandbox, &["type", place]).await?;
            ensure!(found == [*expected], "{place} is {found:?}");
        }
        for path in MASKED {
            let found = self.tool(sandbox, &["cat", path]).await?;
            let nothing = found == ["<end>"] || found.iter().all(|line| line.starts_with('E'));
            ensure!(nothing, "{path} is not masked: {found:?}");
        }
        let canary = self.outside.join("canary");
        let canary = canary.to_str().context("temporary paths are text")?;
        let found =
            self.tool(sandbox, &["cat", canary, "/workspace/canary", "/tmp/canary"]).await?;
        ensure!(found.iter().all(|line| line == "E2"), "the canary was reached: {found:?}");
        let written = ["/bin/x", "/x", "/etc/x", "/proc/sys/kernel/core_pattern", "/run/x"];
        let arguments: Vec<&str> = ["write"].into_iter().chain(written).collect();
        let found = self.tool(sandbox, &arguments).await?;
        ensure!(found.iter().all(|line| line.starts_with('E')), "something is writable: {found:?}");
        let found = self.tool(sandbox, &["write", "/workspace/x", "/tmp/x", "/dev/shm/x"]).await?;
        ensure!(found.iter().all(|line| line == "written"), "{found:?}");
        let words = self.tool(sandbox, &["cat", "/proc/self/mountinfo"]).await?.join("\n");
        let place = self.node.directory().to_string_lossy().into_owned();
        ensure!(!words.contains(&place), "the mounts tell where the root is:\n{words}");
        sandbox.inside().ping().await?;
        Ok(())
    }

    fn outside_is_as_before(&self) -> Result<()> {
        ensure!(names_in(&self.outside)? == ["canary", "self"], "{:?}", names_in(&self.outside)?);
        ensure!(names_in(&self.outside.join("self"))?.is_empty());
        ensure!(std::fs::read(self.outside.join("canary"))? == b"canary of the host");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let outside = self.outside.to_string_lossy().into_owned();
        ensure!(!mounts.contains(&outside), "something is mounted outside");
        Ok(())
    }
}

/// Puts something at a place of a root, with directories above it.
fn put(root: &Path, place: &str, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let path = root.join(place);
    std::fs::create_dir_all(path.parent().context("a place has a directory")?)?;
    Ok(make(&path)?)
}

/// Lays a root for each place and looks at its sandbox; at least some must have been launched.
fn for_each_place(kind: &str, make: impl Fn(&Path, &Path) -> std::io::Result<()>) -> Result<()> {
    if !needs("/usr/bin/cc")? {
        return Ok(());
    }
    on_node(
        |_| {},
        async |node: &Node| {
            let trap = Trap::lay(node)?;
            let mut launched = 0;
            for place in PLACES {
                let name = format!("{kind}-{}", place.replace('/', "-"));
                let root = trap.root(&name)?;
                put(&root, place, |path| make(path, &trap.outside))?;
                let outcome = async {
                    let Some(sandbox) = trap.sandbox(&name).await? else { return Ok(()) };
                    launched += 1;
                    trap.nothing_happened(&sandbox).await?;
                    sandbox.kill().await?;
                    anyhow::Ok(())
                };
                outcome.await.with_context(|| format!("a root where {place} is a {kind}"))?;
                trap.outside_is_as_before().with_context(|| (*place).to_owned())?;
            }
            ensure!(launched > PLACES.len() / 2, "only {launched} were launched");
            Ok(())
        },
    )
}

/// A link in the place of `/proc` made the runtime write to, or mount on, what it led to
/// (CVE-2019-19921, CVE-2023-27561, CVE-2023-28642; for other places CVE-2021-30465); files and
/// directories that were made in the way of it appeared on the host (CVE-2024-45310).
#[test]
fn cve_2019_19921_cve_2023_28642_links_in_the_place_of_directories_lead_nowhere() -> Result<()> {
    for_each_place("link", |path, outside| symlink(outside, path))
}

/// The same with links that climb instead of beginning at the top.
#[test]
fn cve_2021_30465_links_that_climb_lead_nowhere() -> Result<()> {
    for_each_place("climbing-link", |path, outside| {
        let climb = "../".repeat(24);
        let outside = outside.strip_prefix("/").unwrap_or(outside);
        symlink(Path::new(&climb).join(outside), path)
    })
}

/// `/dev/null` was a link, and masking a file by it mounted what the link led to (CVE-2025-31133);
/// `/dev/console` and `/dev/pts` alike (CVE-2025-52565); writes to `/proc` were sent elsewhere by
/// links and mounts that the attacker shared (CVE-2025-52881).
#[test]
fn cve_2025_31133_cve_2025_52565_cve_2025_52881_masks_hold_whatever_dev_is() -> Result<()> {
    for_each_place("link-into-proc", |path, _| symlink("/proc/sysrq-trigger", path))?;
    for_each_place("link-to-itself", |path, _| symlink(path, path))
}

/// Files in the places of directories.
#[test]
fn files_in_the_place_of_directories_change_nothing() -> Result<()> {
    for_each_place("file", |path, _| std::fs::write(path, "a file"))
}

/// A pipe in the place of a file blocks the process that opens it until its other end is open.
#[test]
fn pipes_in_the_place_of_files_block_no_launch() -> Result<()> {
    for_each_place("pipe", |path, _| {
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        Ok(rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)?)
    })
}

/// Set-user-id programs and devices of an image counted as the host's.
#[test]
fn set_user_id_programs_and_devices_of_a_root_have_no_effect() -> Result<()> {
    if !needs("/usr/bin/cc")? {
        return Ok(());
    }
    on_node(
        |_| {},
        async |node: &Node| {
            let trap = Trap::lay(node)?;
            let root = trap.root("privileged")?;
            let program = root.join("bin/set");
            std::fs::copy(&trap.tool, &program)?;
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o6755))?;
            let devices: &[_] = match node.users() {
                Users::Ranges => &[("bin/memory", 1, 1), ("bin/zero", 1, 5), ("zero", 1, 5)],
                // Only root can make them.
                Users::Subordinate | Users::Alone => &[],
            };
            for (name, major, minor) in devices.iter().copied() {
                let kind = rustix::fs::FileType::CharacterDevice;
                let mode = rustix::fs::Mode::from_raw_mode(0o666);
                let device = rustix::fs::makedev(major, minor);
                rustix::fs::mknodat(rustix::fs::CWD, root.join(name), kind, mode, device)?;
            }
            let sandbox = trap.sandbox("privileged").await?.context("it is an ordinary root")?;
            let ran = node.run(&sandbox, ExecSpec::argv(["/bin/set", "id"])).await?;
            ensure!(ran.stdout == b"1000 1000 1000\n", "{ran:?}");
            let devices = ["cat", "/bin/memory", "/bin/zero", "/zero"];
            let found = trap.tool(&sandbox, &devices).await?;
            ensure!(found.iter().all(|line| line == "E13" || line == "E2"), "{found:?}");
            trap.nothing_happened(&sandbox).await?;
            Ok(())
        },
    )
}

/// What was meant as a name was read as options (as in CVE-2022-0811, where it was a setting of the
/// kernel): layers are named in a list with separators of its own.
#[test]
fn names_that_look_like_options_of_a_mount_are_names() -> Result<()> {
    if !needs("/usr/bin/cc")? {
        return Ok(());
    }
    on_node(
        |_| {},
        async |node: &Node| {
            let trap = Trap::lay(node)?;
            let outside = trap.outside.display();
            for name in [
                "a:b",
                "a,upperdir=x",
                "a\\",
                "a b",
                "a\nb",
                "-o",
                &format!("x:{}", outside.to_string().replace('/', "\\057")),
            ] {
                // The name of the root itself, and a name at the top of one.
                let Ok(_) = trap.root(name) else { bail!("{name:?} cannot be made") };
                if let Some(sandbox) = trap.sandbox(name).await? {
                    trap.nothing_happened(&sandbox).await.with_context(|| format!("{name:?}"))?;
                    sandbox.kill().await?;
                }
                let inner = format!("inner-{}", name.len());
                let root = trap.root(&inner)?;
                std::fs::create_dir_all(root.join(name))?;
                std::fs::write(root.join(name).join("file"), "text")?;
                if let Some(sandbox) = trap.sandbox(&inner).await? {
                    trap.nothing_happened(&sandbox)
                        .await
                        .with_context(|| format!("in {name:?}"))?;
                    sandbox.kill().await?;
                }
                trap.outside_is_as_before()?;
            }
            for name in ["..", "", "/", "../outside", "a/../..", "/etc", "missing", "link"] {
                if name == "link" {
                    symlink(&trap.outside, node.root_directories().join(name))?;
                }
                ensure!(trap.sandbox(name).await?.is_none(), "{name:?} is a root");
            }
            Ok(())
        },
    )
}

/// Marks of overlays that anyone may set said where a file's contents, or a directory, really are.
#[test]
fn cve_2023_0386_marks_of_an_overlay_in_a_root_lead_nowhere() -> Result<()> {
    if !needs("/usr/bin/cc")? {
        return Ok(());
    }
    on_node(
        |_| {},
        async |node: &Node| {
            let trap = Trap::lay(node)?;
            let root = trap.root("marked")?;
            for name in ["d", "proc", "etc", "workspace", "bin/sub"] {
                std::fs::create_dir_all(root.join(name))?;
            }
            std::fs::write(root.join("d/file"), "its own")?;
            std::fs::write(root.join("d/empty"), "")?;
            let up = format!("/{}{}", "../".repeat(24), trap.outside.display());
            let marks: &[(&str, &str, &str)] = &[
                ("", "opaque", "y"),
                ("", "redirect", &up),
                ("d", "redirect", &up),
                ("bin/sub", "redirect", "/proc"),
                ("d/file", "redirect", "/etc/passwd"),
                ("d/file", "metacopy", ""),
                ("d/empty", "redirect", &up),
                ("d/empty", "metacopy", ""),
                ("etc", "opaque", "y"),
                ("proc", "opaque", "y"),
                ("workspace", "whiteout", "y"),
            ];
            for (path, mark, value) in marks {
                for space in ["user", "trusted"] {
                    let name = format!("{space}.overlay.{mark}");
                    let flags = rustix::fs::XattrFlags::empty();
                    let set = rustix::fs::setxattr(root.join(path), name, value.as_bytes(), flags);
                    // Only root has the second kind.
                    ensure!(set.is_ok() || space == "trusted", "{path}: {set:?}");
                }
            }
            let Some(sandbox) = trap.sandbox("marked").await? else { return Ok(()) };
            let found = trap.tool(&sandbox, &["cat", "/d/file", "/d/empty"]).await?;
            let own = found == ["its own<end>", "<end>"];
            // The kernel may as well refuse a file with marks that it is not to follow.
            let refused = found.iter().all(|line| line.starts_with('E'));
            ensure!(own || refused, "{found:?}");
            trap.nothing_happened(&sandbox).await?;
            trap.outside_is_as_before()
        },
    )
}
