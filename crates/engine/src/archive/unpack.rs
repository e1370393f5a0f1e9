//! Unpacks an archive entry by entry; the guest writes the files. An entry that points out of its
//! directory, or is no file, directory or link, is refused by name; earlier entries stay.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use model::{ErrorCode, Refusal};
use tar_stream::{Bounds as Format, Decoder, Entry, Kind, Step, TarError, padding};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::pieces::{Pieces, Source};
use super::sandbox_files::Files;

const COPY_BYTES: usize = 64 * 1024;

/// How many files may wait for the guest's answer at once.
const FINISHING_MAX: usize = 8;

/// The permissions that files and directories in a sandbox can have.
const FILE_SETTABLE: u32 = 0o1777;
const DIRECTORY_SETTABLE: u32 = 0o3777;

/// The limits of an archive.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Entries.
    pub entries: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// What happens to entries that a sandbox cannot have.
    pub unusual: Unusual,
}

/// What happens to pipes, devices and the like in an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusual {
    /// The archive is refused.
    Refuse,
    /// They are left out.
    LeaveOut,
}

/// What was unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

/// Why an archive was not unpacked.
#[derive(Debug)]
pub enum UnpackError<E> {
    /// The archive is too large, invalid, or has a forbidden entry.
    Archive(Refusal),
    /// The sandbox refused a file.
    Files(Refusal),
    /// Its bytes did not arrive.
    Source(E),
}

/// An archive that is being unpacked.
pub struct Unpacking<'a, F, P> {
    used: &'a F,
    source: Source<P>,
    decoder: Decoder,
    root: &'a str,
    bounds: Bounds,
    seen: u64,
    done: Unpacked,
    /// Directories on the path of the last entry, if their metadata is restored.
    open: Option<Vec<OpenDirectory>>,
    /// Files that were sent, and not confirmed yet.
    finishing: Vec<Finishing<'a>>,
    root_exists: bool,
}

/// A file that was sent. Its answer is awaited later, so that small files do not wait for each other.
struct Finishing<'a> {
    entry: Vec<u8>,
    confirmed: Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 'a>>,
}

/// A directory whose metadata is set when all its entries are there.
struct OpenDirectory {
    at: String,
    mode: u32,
    modified_ms: i64,
}

/// What an entry becomes.
#[derive(Debug, PartialEq, Eq)]
enum EntryKind {
    File,
    Directory,
    Link,
    Copy,
}

type Done<T, P> = Result<T, UnpackError<<P as Pieces>::Error>>;

impl<'a, F: Files, P: Pieces> Unpacking<'a, F, P> {
    /// Unpacks these bytes into this directory.
    pub fn new(used: &'a F, pieces: P, root: &'a str, bounds: Bounds) -> Self {
        let source = Source::of(pieces);
        let (done, decoder) = (Unpacked::default(), Decoder::new(Format::NONE));
        let root = root.trim_end_matches('/');
        let finishing = Vec::new();
        Self {
            used,
            source,
            decoder,
            root,
            bounds,
            seen: 0,
            done,
            open: None,
            finishing,
            root_exists: false,
        }
    }

    /// The directory exists: it is not made.
    #[must_use]
    pub fn into_existing(self) -> Self {
        Self { root_exists: true, ..self }
    }

    /// Restores an archive: permissions, times and hard links as well. Entries that a sandbox
    /// cannot have are left out.
    #[must_use]
    pub fn with_metadata(self) -> Self {
        Self { open: Some(Vec::new()), ..self }
    }

    /// Unpacks everything.
    pub async fn run(mut self) -> Done<Unpacked, P> {
        self.used.check_room()?;
        if !self.root_exists {
            let root = if self.root.is_empty() { "/" } else { self.root };
            self.used.within(self.used.inside().make_directory(root, true)).await?;
        }
        while let Some(entry) = self.next_entry().await? {
            self.seen += 1;
            if self.seen > self.bounds.entries {
                let cause = format!("the archive has more than {} entries", self.bounds.entries);
                return Err(UnpackError::Archive(Refusal::new(ErrorCode::TooLarge, cause)));
            }
            if self.must_settle(&entry) {
                self.settle().await?;
            }
            self.put(&entry).await?;
        }
        self.settle().await?;
        self.leave("").await?;
        self.source.drain(1 << 20).await?;
        Ok(self.done)
    }

    /// Whether an entry must find the files before it: it may name one of them.
    fn must_settle(&self, entry: &Entry) -> bool {
        // One file may have several paths, such as `a` and `./a`; they have the last name in common.
        let name = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
        let is_new = self.finishing.iter().all(|other| name(&other.entry) != name(&entry.path));
        entry.kind != Kind::File || !is_new || self.finishing.len() >= FINISHING_MAX
    }

    /// Waits until the guest has confirmed all files that were sent.
    async fn settle(&mut self) -> Done<(), P> {
        for Finishing { entry, confirmed } in std::mem::take(&mut self.finishing) {
            let about =
                |refusal| UnpackError::from(refusal).about(&String::from_utf8_lossy(&entry));
            confirmed.await.map_err(about)?;
        }
        Ok(())
    }

    /// The next entry; none at the end.
    async fn next_entry(&mut self) -> Done<Option<Entry>, P> {
        loop {
            let Some(block) = self.source.block().await? else {
                self.decoder.end()?;
                return Ok(None);
            };
            match self.decoder.block(&block)? {
                Step::More => {}
                Step::Entry(entry) => return Ok(Some(*entry)),
                Step::End => return Ok(None),
            }
        }
    }

    /// Unpacks an entry, and reads past its contents.
    async fn put(&mut self, entry: &Entry) -> Done<(), P> {
        let shown = String::from_utf8_lossy(&entry.path).into_owned();
        let about = |error: UnpackError<P::Error>| error.about(&shown);
        let wanted = match wanted(entry) {
            Ok(wanted) => wanted,
            Err(_) if self.bounds.unusual == Unusual::LeaveOut => {
                return self.pass_over(entry).await;
            }
            Err(refused) => return Err(about(refused)),
        };
        if self.open.is_some() && !has_text_names(&wanted, entry) {
            return self.pass_over(entry).await;
        }
        let inside = path_beneath(&entry.path).map_err(about)?;
        if inside.is_empty() {
            if wanted != EntryKind::Directory {
                return Err(about(broken("no name")));
            }
            // The directory itself, which exists.
            let at = self.root.to_owned();
            self.enter(at, entry);
            return self.pass_over(entry).await;
        }
        let at = format!("{}/{inside}", self.root);
        self.leave(&at).await.map_err(about)?;
        let put = match wanted {
            EntryKind::File => return self.file(&at, entry).await.map_err(about),
            EntryKind::Directory => self.directory(at, entry).await,
            EntryKind::Link => self.link(&at, &entry.target).await,
            EntryKind::Copy if self.open.is_some() => self.another_name(&at, &entry.target).await,
            EntryKind::Copy => self.copy(&at, entry).await,
        };
        put.map_err(about)?;
        self.pass_over(entry).await
    }

    async fn pass_over(&mut self, entry: &Entry) -> Done<(), P> {
        self.source.skip(entry.size + padding(entry.size)).await
    }

    async fn directory(&mut self, at: String, entry: &Entry) -> Done<(), P> {
        self.used.within(self.used.inside().make_directory(&at, true)).await?;
        self.done.directories += 1;
        self.enter(at, entry);
        Ok(())
    }

    /// Later entries are in this directory, until another path comes.
    fn enter(&mut self, at: String, entry: &Entry) {
        if let Some(open) = &mut self.open {
            let (mode, modified_ms) = (entry.mode & DIRECTORY_SETTABLE, modified_ms(entry));
            open.push(OpenDirectory { at, mode, modified_ms });
        }
    }

    /// Sets the metadata of directories that this path is not in.
    async fn leave(&mut self, at: &str) -> Done<(), P> {
        let is_left = |above: &mut OpenDirectory| {
            !at.strip_prefix(above.at.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        while let Some(above) = self.open.as_mut().and_then(|open| open.pop_if(is_left)) {
            self.used
                .within(self.used.inside().set_metadata(
                    &above.at,
                    Some(above.mode),
                    Some(above.modified_ms),
                ))
                .await?;
        }
        Ok(())
    }

    async fn file(&mut self, at: &str, entry: &Entry) -> Done<(), P> {
        let size = entry.size;
        self.count(size)?;
        // Set-user-id bits have no effect in a sandbox.
        let mode = if self.open.is_some() { entry.mode & FILE_SETTABLE } else { entry.mode };
        let mut writer = self.used.within(self.used.inside().write_file(at, Some(mode))).await?;
        let mut left = size;
        while left > 0 {
            let piece = self.source.piece(left).await?;
            if let Err(error) = writer.write_all(&piece).await {
                return Err(UnpackError::Files(self.used.explain(error).await));
            }
            left -= piece.len() as u64;
        }
        self.source.skip(padding(size)).await?;
        let used = self.used;
        let mut confirmed = Box::pin(async move { used.within(writer.finish()).await.map(drop) });
        if self.open.is_none() {
            // Sent now, and awaited later.
            match poll_fn(|cx| Poll::Ready(confirmed.as_mut().poll(cx))).await {
                Poll::Ready(confirmed) => confirmed?,
                Poll::Pending => {
                    self.finishing.push(Finishing { entry: entry.path.clone(), confirmed });
                }
            }
        } else {
            confirmed.await?;
            let set = self.used.inside().set_metadata(at, None, Some(modified_ms(entry)));
            self.used.within(set).await?;
        }
        self.done.files += 1;
        Ok(())
    }

    async fn another_name(&mut self, at: &str, target: &[u8]) -> Done<(), P> {
        let first = format!("{}/{}", self.root, path_beneath(target)?);
        match self.used.within(self.used.inside().link_file(at, &first)).await {
            // Its target was left out, and so is this.
            Err(refusal) if refusal.code == ErrorCode::PathNotFound => return Ok(()),
            linked => linked?,
        }
        self.done.files += 1;
        Ok(())
    }

    async fn link(&mut self, at: &str, target: &[u8]) -> Done<(), P> {
        let target = text(target)?;
        if target.is_empty() {
            return Err(broken("a link without a target"));
        }
        match self.used.within(self.used.inside().make_link(at, target)).await {
            // As with files, the new one replaces the old one.
            Err(refusal) if refusal.code == ErrorCode::PathExists => {
                self.used.within(self.used.inside().remove(at, false)).await?;
                self.used.within(self.used.inside().make_link(at, target)).await?;
            }
            made => made?,
        }
        self.done.links += 1;
        Ok(())
    }

    /// A hard link to an earlier file becomes a copy of it.
    async fn copy(&mut self, at: &str, entry: &Entry) -> Done<(), P> {
        let from = format!("{}/{}", self.root, path_beneath(&entry.target)?);
        let mut reader = self.used.within(self.used.inside().read_file(&from, 0, None)).await?;
        self.count(reader.entry.size)?;
        let mut writer =
            self.used.within(self.used.inside().write_file(at, Some(entry.mode))).await?;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let copied = match reader.read(&mut buffer).await {
                Ok(0) => break,
                Ok(read) => writer.write_all(&buffer[..read]).await,
                Err(error) => Err(error),
            };
            if let Err(error) = copied {
                return Err(UnpackError::Files(self.used.explain(error).await));
            }
        }
        self.used.within(writer.finish()).await?;
        self.done.files += 1;
        Ok(())
    }

    fn count(&mut self, size: u64) -> Done<(), P> {
        self.done.bytes = self.done.bytes.saturating_add(size);
        if self.done.bytes > self.bounds.bytes {
            let cause = format!("the archive has more than {} bytes", self.bounds.bytes);
            return Err(UnpackError::Archive(Refusal::new(ErrorCode::TooLarge, cause)));
        }
        Ok(())
    }
}

impl<E> UnpackError<E> {
    /// Adds the name of the entry.
    fn about(self, entry: &str) -> Self {
        let about = |mut refusal: Refusal| {
            refusal.cause = format!("{entry:?}: {}", refusal.cause).into();
            refusal
        };
        match self {
            Self::Archive(refusal) => Self::Archive(about(refusal)),
            Self::Files(refusal) => Self::Files(about(refusal)),
            Self::Source(error) => Self::Source(error),
        }
    }
}

/// A refusal by the guest, or by the use.
impl<E> From<Refusal> for UnpackError<E> {
    fn from(refusal: Refusal) -> Self {
        Self::Files(refusal)
    }
}

impl<E> From<TarError> for UnpackError<E> {
    fn from(error: TarError) -> Self {
        let code = match error {
            TarError::Size => ErrorCode::TooLarge,
            TarError::Read(_)
            | TarError::Cut
            | TarError::Broken(_)
            | TarError::TooLarge(_)
            | TarError::Unsupported(_) => ErrorCode::InvalidArgument,
        };
        Self::Archive(Refusal::new(code, error.to_string()))
    }
}

fn broken<E>(cause: &'static str) -> UnpackError<E> {
    TarError::Broken(cause.into()).into()
}

/// Our archives have whole seconds, so nothing finer is set.
fn modified_ms(entry: &Entry) -> i64 {
    entry.modified.0.saturating_mul(1000)
}

fn wanted<E>(entry: &Entry) -> Result<EntryKind, UnpackError<E>> {
    match entry.kind {
        Kind::File if entry.sparse.is_some() => Err(broken("a sparse file")),
        Kind::File => Ok(EntryKind::File),
        Kind::Directory => Ok(EntryKind::Directory),
        Kind::Hardlink => Ok(EntryKind::Copy),
        Kind::Symlink => Ok(EntryKind::Link),
        Kind::Device => Err(broken("a device")),
        Kind::Fifo => Err(broken("a named pipe")),
        Kind::Other(_) => Err(broken("neither a file, a directory nor a link")),
    }
}

fn text<E>(bytes: &[u8]) -> Result<&str, UnpackError<E>> {
    let text = std::str::from_utf8(bytes).map_err(|_| broken("a name that is not UTF-8"))?;
    if text.contains('\0') { Err(broken("a name with a zero byte in it")) } else { Ok(text) }
}

/// Whether a guest can write it: it takes names as text only.
fn has_text_names(wanted: &EntryKind, entry: &Entry) -> bool {
    let is_text = |bytes: &[u8]| text::<()>(bytes).is_ok();
    is_text(&entry.path)
        && match wanted {
            EntryKind::File | EntryKind::Directory => true,
            EntryKind::Link | EntryKind::Copy => !entry.target.is_empty() && is_text(&entry.target),
        }
}

/// The path of an entry, always beneath its directory.
fn path_beneath<E>(path: &[u8]) -> Result<String, UnpackError<E>> {
    let path = text(path)?;
    if path.starts_with('/') {
        return Err(broken("an absolute path"));
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(broken("a path with `..` in it")),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use tar_stream::Sparse;

    use super::*;

    #[test]
    fn unpack_keeps_a_path_beneath_its_directory() {
        for (path, expected) in [
            ("a/b", Some("a/b")),
            ("./a//b/", Some("a/b")),
            (".", Some("")),
            ("a/./b", Some("a/b")),
            ("..a", Some("..a")),
            ("/etc/passwd", None),
            ("..", None),
            ("a/../../b", None),
            ("a/..", None),
            ("a\0b", None),
        ] {
            assert_eq!(path_beneath::<()>(path.as_bytes()).ok().as_deref(), expected, "{path:?}");
        }
        assert!(path_beneath::<()>(b"\xff").is_err());
    }

    #[test]
    fn unpack_takes_files_directories_and_links_only() {
        for (kind, taken) in [
            (Kind::File, Some(EntryKind::File)),
            (Kind::Directory, Some(EntryKind::Directory)),
            (Kind::Symlink, Some(EntryKind::Link)),
            (Kind::Hardlink, Some(EntryKind::Copy)),
            (Kind::Device, None),
            (Kind::Fifo, None),
            (Kind::Other(b'Z'), None),
        ] {
            let mut entry = Entry {
                kind,
                path: b"a".to_vec(),
                target: Vec::new(),
                mode: 0o644,
                owner: (0, 0),
                size: 0,
                modified: (0, 0),
                sparse: None,
                attributes: Vec::new(),
                has_attributes: false,
            };
            assert_eq!(wanted::<()>(&entry).ok(), taken, "{kind:?}");
            entry.sparse = Some(Sparse { real_size: 0, regions: Vec::new() });
            assert!(kind != Kind::File || wanted::<()>(&entry).is_err(), "a sparse file");
        }
    }
}
