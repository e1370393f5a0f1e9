//! The files of an agent: from a request, or from a directory of this machine. A directory is read
//! only beneath those that were configured, and nothing is followed out of it; what is too large is
//! refused before it is held.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use engine::SeedFile;
use model::{ErrorCode, Refusal};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use super::errors::AshError;
use super::fields::Fields;

/// The file with the prompt of the agent.
pub(super) const PROMPT: &str = "CLAUDE.md";
const SERVERS: &str = ".mcp.json";
const PATH_CHARS_MAX: usize = 4096;
const FILES_MAX: usize = 10_000;
const ENTRIES_MAX: usize = 4 * FILES_MAX;
const BYTES_MAX: usize = 64 << 20;
const DEPTH_MAX: usize = 32;

/// Files by path.
pub(super) type Files = BTreeMap<String, SeedFile>;

/// A path within an agent or a workspace: relative, and it stays where it is.
pub(super) fn inner_path(path: &str) -> Option<String> {
    if path.is_empty() || path.len() > PATH_CHARS_MAX || path.contains('\0') {
        return None;
    }
    let mut parts = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// Files of a request: each with its path and its contents in base64.
pub(super) fn from_request(list: Vec<Value>) -> Result<Files, AshError> {
    let mut files = Files::new();
    for item in list {
        let mut item = Fields::inner(item, "body/files/item")?;
        let given = item.required_text("path", PATH_CHARS_MAX)?;
        let content = item.required_text("content", usize::MAX)?;
        let Some(path) = inner_path(&given) else {
            return Err(AshError::new(400, format!("Invalid file path: {given}")));
        };
        let wrong = |_| AshError::new(400, format!("Invalid base64 content: {given}"));
        let bytes = wire::from_base64(&content).map_err(wrong)?;
        put(&mut files, path, bytes, 0o644);
    }
    bounded(files)
}

fn put(files: &mut Files, path: String, bytes: Vec<u8>, mode: u32) {
    files.insert(path.clone(), SeedFile { path, bytes, mode });
}

/// Puts a text in place of a file.
pub(super) fn put_text(files: &mut Files, path: &str, text: &str) {
    put(files, path.to_owned(), text.as_bytes().to_vec(), 0o644);
}

pub(super) fn bounded(files: Files) -> Result<Files, AshError> {
    let bytes: usize = files.values().map(|file| file.bytes.len()).sum();
    if files.len() > FILES_MAX || bytes > BYTES_MAX {
        return Err(AshError::new(413, too_large()));
    }
    for path in files.keys() {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]);
        if let Some(both) = above.into_iter().find(|above| files.contains_key(*above)) {
            let cause = format!("Invalid file path: {both} is a file and a directory");
            return Err(AshError::new(400, cause));
        }
    }
    Ok(files)
}

fn too_large() -> String {
    format!("An agent may have at most {FILES_MAX} files and {} MiB", BYTES_MAX >> 20)
}

/// Adds servers to those that an agent has, each in place of one of the same name.
pub(super) fn add_servers(files: &mut Files, servers: Map<String, Value>) {
    let present = files.get(SERVERS).and_then(|file| serde_json::from_slice(&file.bytes).ok());
    // A value that is not an object has no servers.
    let mut all = match present {
        Some(Value::Object(map)) => map,
        Some(_) | None => Map::new(),
    };
    let known = all.entry("mcpServers").or_insert_with(|| json!({}));
    if !known.is_object() {
        *known = json!({});
    }
    if let Some(known) = known.as_object_mut() {
        known.extend(servers);
    }
    put_text(files, SERVERS, &Value::Object(all).to_string());
}

/// The files of a directory. Blocks.
pub(super) fn from_directory(roots: &[PathBuf], given: &str) -> Result<(PathBuf, Files), AshError> {
    let outside = || {
        let cause = format!("path {given:?} is not beneath a directory of `ash.agent_roots`");
        AshError::new(400, cause)
    };
    let places = roots.iter().filter_map(|root| root.canonicalize().ok());
    let found = places.into_iter().find_map(|root| {
        let path = root.join(given).canonicalize().ok()?;
        let beneath = path.strip_prefix(&root).ok()?.to_owned();
        Some((root, path, beneath))
    });
    let (root, path, beneath) = found.ok_or_else(outside)?;
    // The path may have changed since that check: the kernel still keeps it beneath the root.
    let beneath = if beneath.as_os_str().is_empty() { PathBuf::from(".") } else { beneath };
    let root = File::open(root).map_err(|_| outside())?;
    let top = open(&root.into(), &beneath, OFlags::DIRECTORY).map_err(|_| outside())?;
    let mut walk = Walk { top, files: Files::new(), bytes: 0, entries: 0 };
    walk.directory("", 0)?;
    if !walk.files.contains_key(PROMPT) {
        return Err(AshError::new(400, "Agent directory must contain CLAUDE.md"));
    }
    Ok((path, walk.files))
}

/// A directory that is being read.
struct Walk {
    top: OwnedFd,
    files: Files,
    bytes: usize,
    /// Directories count too, or there could be any number of empty ones.
    entries: usize,
}

impl Walk {
    fn directory(&mut self, at: &str, depth: usize) -> Result<(), AshError> {
        if depth == DEPTH_MAX {
            let cause = format!("{at}: more than {DEPTH_MAX} directories deep");
            return Err(AshError::new(400, cause));
        }
        let here = if at.is_empty() { "." } else { at };
        // A link to a directory is not walked: it would be there twice, or for ever.
        let opened = open(&self.top, Path::new(here), OFlags::DIRECTORY | OFlags::NOFOLLOW);
        let opened = opened.map_err(|error| unreadable(here, error))?;
        let listed = Dir::read_from(&opened).map_err(|error| unreadable(here, error))?;
        for entry in listed {
            let entry = entry.map_err(|error| unreadable(here, error))?;
            let Ok(name) = entry.file_name().to_str() else {
                return Err(AshError::new(400, format!("{here}: a name is not UTF-8")));
            };
            if name == "." || name == ".." {
                continue;
            }
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(AshError::new(413, too_large()));
            }
            let path = if at.is_empty() { name.to_owned() } else { format!("{at}/{name}") };
            match entry.file_type() {
                FileType::Directory => self.directory(&path, depth + 1)?,
                FileType::RegularFile
                | FileType::Symlink
                | FileType::Unknown
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice => self.file(path)?,
            }
        }
        Ok(())
    }

    fn file(&mut self, path: String) -> Result<(), AshError> {
        let opened = open(&self.top, Path::new(&path), OFlags::NONBLOCK);
        let opened = opened.map_err(|error| unreadable(&path, error))?;
        let about = fstat(&opened).map_err(|error| unreadable(&path, error))?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            let cause =
                format!("{path}: only files, directories and links to files can be deployed");
            return Err(AshError::new(400, cause));
        }
        let left = BYTES_MAX - self.bytes;
        let mut bytes = Vec::new();
        let read = File::from(opened).take(left as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| AshError::new(400, format!("{path}: cannot be read: {error}")))?;
        if bytes.len() > left || self.files.len() == FILES_MAX {
            return Err(AshError::new(413, too_large()));
        }
        self.bytes += bytes.len();
        let mode = if about.st_mode & 0o100 == 0 { 0o644 } else { 0o755 };
        put(&mut self.files, path, bytes, mode);
        Ok(())
    }
}

fn open(beneath: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(beneath, path, flags, Mode::empty(), resolve)
}

fn unreadable(path: &str, error: Errno) -> AshError {
    let cause = match error {
        Errno::XDEV => format!("{path}: leads out of the agent's directory"),
        other => format!("{path}: cannot be read: {other}"),
    };
    AshError::new(400, cause)
}

/// Reads a directory on a thread that may wait for the disk.
pub(super) async fn from_directory_elsewhere(
    roots: Vec<PathBuf>,
    given: String,
) -> Result<(PathBuf, Files), AshError> {
    let reading = tasks::spawn_blocking(move || from_directory(&roots, &given));
    reading.await.unwrap_or_else(|error| {
        Err(Refusal::new(
            ErrorCode::Internal,
            format!("the thread that reads the agent's files failed: {error}"),
        )
        .into())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn error_text<T>(result: Result<T, AshError>) -> String {
        format!("{:?}", result.err().expect("refused"))
    }

    #[test]
    fn agent_paths_stay_beneath_the_agent() {
        for (path, inner) in [
            ("a", Some("a")),
            ("./a//b/", Some("a/b")),
            ("a/./b", Some("a/b")),
            ("", None),
            (".", None),
            ("/a", None),
            ("../a", None),
            ("a/../b", None),
            ("a/..", None),
            ("a\0b", None),
        ] {
            assert_eq!(inner_path(path).as_deref(), inner, "{path:?}");
        }
        assert_eq!(inner_path(&"x".repeat(PATH_CHARS_MAX + 1)), None);
    }

    #[test]
    fn files_of_a_request_are_checked() {
        let files = from_request(vec![json!({"path": "a/b", "content": "aGk="})]).unwrap();
        assert_eq!(&files["a/b"].bytes[..], b"hi");
        for (item, part) in [
            (json!("a"), "must be object"),
            (json!({"content": ""}), "required property 'path'"),
            (json!({"path": "a"}), "required property 'content'"),
            (json!({"path": "../a", "content": ""}), "Invalid file path: ../a"),
            (json!({"path": "/etc/passwd", "content": ""}), "Invalid file path"),
            (json!({"path": "a", "content": "?"}), "Invalid base64 content: a"),
        ] {
            let refused = error_text(from_request(vec![item.clone()]));
            assert!(refused.contains(part), "{item}: {refused}");
        }
        let both = ["a/b/c", "a/b"].map(|path| json!({"path": path, "content": ""}));
        assert!(error_text(from_request(both.to_vec())).contains("a/b is a file and a directory"));
        let apart = ["a/b", "a-b", "a.b/c"].map(|path| json!({"path": path, "content": ""}));
        assert_eq!(from_request(apart.to_vec()).unwrap().len(), 3);
    }

    #[test]
    fn mcp_servers_are_merged_by_name() {
        let mut files = Files::new();
        put_text(&mut files, SERVERS, r#"{"mcpServers":{"a":{"url":"1"},"b":{"url":"2"}},"x":1}"#);
        let more = json!({"b": {"url": "3"}, "c": {"command": "d"}});
        add_servers(&mut files, more.as_object().unwrap().clone());
        let merged: Value = serde_json::from_slice(&files[SERVERS].bytes).unwrap();
        let servers = json!({"a": {"url": "1"}, "b": {"url": "3"}, "c": {"command": "d"}});
        assert_eq!(merged, json!({"mcpServers": servers, "x": 1}));
        for broken in ["nonsense", "[]", r#"{"mcpServers":3}"#] {
            put_text(&mut files, SERVERS, broken);
            add_servers(&mut files, more.as_object().unwrap().clone());
            let merged: Value = serde_json::from_slice(&files[SERVERS].bytes).unwrap();
            assert_eq!(merged["mcpServers"]["c"]["command"], "d", "{broken}");
        }
    }

    #[test]
    fn agent_directory_is_read_only_beneath_its_root() {
        let scratch = std::env::temp_dir().join(format!("shoal-deploy-{}", std::process::id()));
        let _ = fs::remove_dir_all(&scratch);
        let root = scratch.join("root");
        let agent = root.join("agent");
        fs::create_dir_all(agent.join("sub/deep")).unwrap();
        fs::write(scratch.join("secret"), "secret").unwrap();
        fs::write(agent.join("run.sh"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(agent.join("run.sh"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(agent.join("sub/deep/a"), "a").unwrap();
        let roots = [scratch.join("missing"), root.clone()];
        let read = |path: &str| from_directory(&roots, path);
        assert!(error_text(read("agent")).contains("Agent directory must contain CLAUDE.md"));
        fs::write(agent.join(PROMPT), "# hi").unwrap();
        symlink("sub/deep/a", agent.join("link")).unwrap();

        let (path, files) = read("agent").unwrap();
        assert_eq!(path, agent.canonicalize().unwrap());
        let names: Vec<_> = files.keys().map(String::as_str).collect();
        assert_eq!(names, [PROMPT, "link", "run.sh", "sub/deep/a"]);
        assert_eq!((files["run.sh"].mode, files[PROMPT].mode), (0o755, 0o644));
        assert_eq!(&files["link"].bytes[..], b"a");
        assert!(read(agent.to_str().unwrap()).is_ok(), "absolute paths are taken too");

        for outside in ["..", "../secret", "/etc", "/", "nowhere", scratch.to_str().unwrap()] {
            let refused = error_text(read(outside));
            assert!(refused.contains("ash.agent_roots"), "{outside}: {refused}");
        }
        symlink("../../secret", agent.join("out")).unwrap();
        assert!(error_text(read("agent")).contains("out: leads out of the agent's directory"));
        fs::remove_file(agent.join("out")).unwrap();
        symlink(&scratch, root.join("hop")).unwrap();
        assert!(error_text(read("hop")).contains("ash.agent_roots"), "a link out of the root");
        symlink("sub", agent.join("loop")).unwrap();
        assert!(error_text(read("agent")).contains("loop: only files"), "links to directories");
        fs::remove_dir_all(&scratch).unwrap();
    }
}
