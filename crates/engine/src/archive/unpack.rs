//! Takes an archive apart, entry by entry, and has the guest write what is in it. An entry that
//! points out of its directory, or is no file, directory or link, is refused by name; what came
//! before it stays.

use model::{ErrorCode, Refusal};
use tar::Header;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use workspaces::tar::{BLOCK, Records, padding};

use super::inside::Files;
use super::pieces::{Pieces, Source};

/// Names and extended headers are kept in memory: nobody needs more for them.
const NAME_BYTES_MAX: u64 = 1 << 20;
const COPY_BYTES: usize = 64 * 1024;

/// Extended headers of one entry: nobody needs more.
const SAID_MAX: u32 = 16;

/// The permissions that a sandbox can be given for files, and for directories.
const FILE_SETTABLE: u32 = 0o1777;
const DIRECTORY_SETTABLE: u32 = 0o3777;

/// How much an archive may bring.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Entries.
    pub entries: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// What becomes of what a sandbox cannot be given.
    pub unusual: Unusual,
}

/// What becomes of pipes, devices and the like in an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusual {
    /// The archive is refused.
    Refuse,
    /// They are left out.
    LeaveOut,
}

/// What came out of an archive.
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

/// Why an archive was not taken apart.
#[derive(Debug)]
pub enum UnpackError<E> {
    /// It is too much, or no archive, or one with something in it that may not be.
    Archive(Refusal),
    /// The sandbox did not take what is in it.
    Files(Refusal),
    /// Its bytes did not arrive.
    Source(E),
}

/// An archive that is being taken apart.
pub struct Unpacking<'a, F, P> {
    used: &'a F,
    source: Source<P>,
    root: &'a str,
    bounds: Bounds,
    seen: u64,
    /// Extended headers since the last entry.
    said: u32,
    done: Unpacked,
    extra: Extra,
    /// Directories on the way to the last entry, if they are to become what they were.
    open: Option<Vec<Above>>,
}

/// A directory about which the last word is said when everything in it is there.
struct Above {
    at: String,
    mode: u32,
    modified_ms: i64,
}

/// What was said about the next entry before it came.
#[derive(Debug, Default)]
struct Extra {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    modified_s: Option<i64>,
}

/// What is known of an entry besides where it is and what kind of thing.
struct About<'a> {
    target: Option<&'a [u8]>,
    mode: u32,
    size: u64,
    modified_ms: i64,
}

/// What an entry is to become.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    File,
    Directory,
    Link,
    Copy,
}

type Done<T, P> = Result<T, UnpackError<<P as Pieces>::Error>>;

impl<'a, F: Files, P: Pieces> Unpacking<'a, F, P> {
    /// Of these bytes, into this directory.
    pub fn new(used: &'a F, pieces: P, root: &'a str, bounds: Bounds) -> Self {
        let source = Source::of(pieces);
        let (done, extra) = (Unpacked::default(), Extra::default());
        let root = root.trim_end_matches('/');
        Self { used, source, root, bounds, seen: 0, said: 0, done, extra, open: None }
    }

    /// Of an archive from which everything is to come back: permissions and times as well, and other
    /// names of a file as such. What cannot be given to a sandbox is left out.
    #[must_use]
    pub fn as_it_was(self) -> Self {
        Self { open: Some(Vec::new()), ..self }
    }

    /// Takes it apart.
    pub async fn run(mut self) -> Done<Unpacked, P> {
        self.used.make_directory(if self.root.is_empty() { "/" } else { self.root }).await?;
        while let Some(block) = self.source.block().await? {
            if block == [0; BLOCK] {
                break;
            }
            self.entry(&block).await?;
        }
        self.leave("").await?;
        self.source.drain(1 << 20).await?;
        Ok(self.done)
    }

    async fn entry(&mut self, block: &[u8; BLOCK]) -> Done<(), P> {
        let header = Header::from_byte_slice(block);
        check_sum(header, block)?;
        let broken = |error: std::io::Error| broken(&error.to_string());
        let size = header.entry_size().map_err(broken)?;
        match header.entry_type().as_byte() {
            b'L' | b'K' | b'x' | b'g' if self.said == SAID_MAX => {
                return Err(damaged("the archive cannot be read: too many headers of one entry"));
            }
            b'L' => self.extra.path = Some(self.name(size).await?),
            b'K' => self.extra.target = Some(self.name(size).await?),
            b'x' => {
                let text = self.said(size).await?;
                self.extra.read(&text)?;
            }
            b'g' => drop(self.said(size).await?),
            kind => {
                self.said = 0;
                self.seen += 1;
                if self.seen > self.bounds.entries {
                    let cause =
                        format!("the archive has more than {} entries", self.bounds.entries);
                    return Err(UnpackError::Archive(Refusal::new(ErrorCode::TooLarge, cause)));
                }
                let extra = std::mem::take(&mut self.extra);
                let size = extra.size.unwrap_or(size);
                let path = extra.path.unwrap_or_else(|| header.path_bytes().into_owned());
                let target = extra.target.or_else(|| Some(header.link_name_bytes()?.into_owned()));
                let mode = header.mode().map_err(broken)? & 0o7777;
                let header_s = || header.mtime().ok().and_then(|at| i64::try_from(at).ok());
                let modified_s = extra.modified_s.or_else(header_s).unwrap_or(0);
                let (target, modified_ms) = (target.as_deref(), modified_s.saturating_mul(1000));
                self.put(kind, &path, About { target, mode, size, modified_ms }).await?;
            }
        }
        Ok(())
    }

    /// The contents of an entry that is about another one.
    async fn said(&mut self, size: u64) -> Done<Vec<u8>, P> {
        self.said += 1;
        if size > NAME_BYTES_MAX {
            return Err(broken("a name or a remark is too long"));
        }
        let text = self.source.exactly(size).await?;
        self.source.skip(padding(size)).await?;
        Ok(text)
    }

    async fn name(&mut self, size: u64) -> Done<Vec<u8>, P> {
        let mut name = self.said(size).await?;
        name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
        Ok(name)
    }

    async fn put(&mut self, kind: u8, path: &[u8], entry: About<'_>) -> Done<(), P> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let about = |error: UnpackError<P::Error>| error.about(&shown);
        let wanted = match wanted(kind, path) {
            Ok(wanted) => wanted,
            Err(_) if self.bounds.unusual == Unusual::LeaveOut => {
                return self.source.skip(entry.size + padding(entry.size)).await;
            }
            Err(refused) => return Err(about(refused)),
        };
        if self.open.is_some() && !can_be_told(&wanted, path, entry.target) {
            return self.source.skip(entry.size + padding(entry.size)).await;
        }
        let inside = inside(path).map_err(about)?;
        if inside.is_empty() {
            if wanted != Wanted::Directory {
                return Err(about(broken("no name")));
            }
            // The directory itself, which is there.
            let at = self.root.to_owned();
            self.enter(at, &entry);
            return Ok(());
        }
        let at = format!("{}/{inside}", self.root);
        self.leave(&at).await.map_err(about)?;
        let put = match wanted {
            Wanted::Directory => self.directory(at, &entry).await,
            Wanted::File => self.file(&at, &entry).await,
            Wanted::Link => self.link(&at, entry.target).await,
            Wanted::Copy if self.open.is_some() => self.another_name(&at, entry.target).await,
            Wanted::Copy => self.copy(&at, entry.mode, entry.target).await,
        };
        put.map_err(about)
    }

    async fn directory(&mut self, at: String, entry: &About<'_>) -> Done<(), P> {
        self.used.make_directory(&at).await?;
        self.done.directories += 1;
        self.enter(at, entry);
        Ok(())
    }

    /// Everything that follows is in this directory, until something else comes.
    fn enter(&mut self, at: String, entry: &About<'_>) {
        if let Some(open) = &mut self.open {
            let (mode, modified_ms) = (entry.mode & DIRECTORY_SETTABLE, entry.modified_ms);
            open.push(Above { at, mode, modified_ms });
        }
    }

    /// Says the last word about directories that this is not in.
    async fn leave(&mut self, at: &str) -> Done<(), P> {
        let is_left = |above: &mut Above| {
            !at.strip_prefix(above.at.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        while let Some(above) = self.open.as_mut().and_then(|open| open.pop_if(is_left)) {
            self.used.set_about(&above.at, Some(above.mode), Some(above.modified_ms)).await?;
        }
        Ok(())
    }

    async fn file(&mut self, at: &str, entry: &About<'_>) -> Done<(), P> {
        let size = entry.size;
        self.count(size)?;
        // What runs as its owner does so nowhere here.
        let mode = if self.open.is_some() { entry.mode & FILE_SETTABLE } else { entry.mode };
        let mut writer = self.used.write_file(at, mode).await?;
        let mut left = size;
        while left > 0 {
            let piece = self.source.piece(left).await?;
            if let Err(error) = writer.write_all(&piece).await {
                return Err(UnpackError::Files(self.used.explain(error).await));
            }
            left -= piece.len() as u64;
        }
        self.source.skip(padding(size)).await?;
        self.used.finish_file(writer).await?;
        if self.open.is_some() {
            self.used.set_about(at, None, Some(entry.modified_ms)).await?;
        }
        self.done.files += 1;
        Ok(())
    }

    async fn another_name(&mut self, at: &str, target: Option<&[u8]>) -> Done<(), P> {
        let first = format!("{}/{}", self.root, inside(target.unwrap_or_default())?);
        match self.used.link_file(at, &first).await {
            // It was left out, and so is this.
            Err(refusal) if refusal.code == ErrorCode::PathNotFound => return Ok(()),
            linked => linked?,
        }
        self.done.files += 1;
        Ok(())
    }

    async fn link(&mut self, at: &str, target: Option<&[u8]>) -> Done<(), P> {
        let target = text(target.unwrap_or_default())?;
        if target.is_empty() {
            return Err(broken("a link to nowhere"));
        }
        match self.used.make_link(at, target).await {
            // As with files, the new one takes the place of the old one.
            Err(refusal) if refusal.code == ErrorCode::PathExists => {
                self.used.remove(at).await?;
                self.used.make_link(at, target).await?;
            }
            made => made?,
        }
        self.done.links += 1;
        Ok(())
    }

    /// Another name of a file that came before becomes a copy of it.
    async fn copy(&mut self, at: &str, mode: u32, target: Option<&[u8]>) -> Done<(), P> {
        let from = format!("{}/{}", self.root, inside(target.unwrap_or_default())?);
        let mut reader = self.used.read_file(&from).await?;
        self.count(reader.entry.size)?;
        let mut writer = self.used.write_file(at, mode).await?;
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
        self.used.finish_file(writer).await?;
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

impl Extra {
    fn read<E>(&mut self, records: &[u8]) -> Result<(), UnpackError<E>> {
        for record in Records(records) {
            let (key, value) = record.map_err(|error| damaged(&error.to_string()))?;
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => {
                    let text = std::str::from_utf8(value).ok();
                    let size = text.and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or_else(|| broken("a size that is not a number"))?);
                }
                b"mtime" => {
                    let text = std::str::from_utf8(value).unwrap_or_default();
                    let seconds = text.split_once('.').map_or(text, |(seconds, _)| seconds);
                    self.modified_s = seconds.parse().ok();
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl<E> UnpackError<E> {
    /// The same about an entry.
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

/// What the guest, or whoever uses it, refuses.
impl<E> From<Refusal> for UnpackError<E> {
    fn from(refusal: Refusal) -> Self {
        Self::Files(refusal)
    }
}

/// An archive that cannot be read, in so many words.
pub(super) fn damaged<E>(cause: &str) -> UnpackError<E> {
    UnpackError::Archive(Refusal::new(ErrorCode::InvalidArgument, cause.to_owned()))
}

fn broken<E>(cause: &str) -> UnpackError<E> {
    damaged(&format!("the archive cannot be read: {cause}"))
}

fn check_sum<E>(header: &Header, block: &[u8; BLOCK]) -> Result<(), UnpackError<E>> {
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte }))
        .sum();
    match header.cksum() {
        Ok(said) if said == sum => Ok(()),
        Ok(_) | Err(_) => Err(broken("a header is damaged, or it is no tar archive")),
    }
}

/// Kinds are letters, and old ones zero bytes.
fn wanted<E>(kind: u8, path: &[u8]) -> Result<Wanted, UnpackError<E>> {
    match kind {
        // Before there were directories in archives, a slash at the end made one.
        b'0' | b'\0' if path.ends_with(b"/") => Ok(Wanted::Directory),
        b'0' | b'\0' | b'7' => Ok(Wanted::File),
        b'1' => Ok(Wanted::Copy),
        b'2' => Ok(Wanted::Link),
        b'3' | b'4' => Err(broken("a device")),
        b'5' => Ok(Wanted::Directory),
        b'6' => Err(broken("a named pipe")),
        b'S' => Err(broken("a sparse file")),
        _ => Err(broken("neither a file, a directory nor a link")),
    }
}

fn text<E>(bytes: &[u8]) -> Result<&str, UnpackError<E>> {
    let text = std::str::from_utf8(bytes).map_err(|_| broken("a name that is not UTF-8"))?;
    if text.contains('\0') { Err(broken("a name with a zero byte in it")) } else { Ok(text) }
}

/// Whether a guest can be told of it: it knows names as text.
fn can_be_told(wanted: &Wanted, path: &[u8], target: Option<&[u8]>) -> bool {
    let is_text = |bytes: &[u8]| text::<()>(bytes).is_ok();
    is_text(path)
        && match wanted {
            Wanted::File | Wanted::Directory => true,
            Wanted::Link | Wanted::Copy => target.is_some_and(is_text),
        }
}

/// The path of an entry, beneath its directory whatever it says.
fn inside<E>(path: &[u8]) -> Result<String, UnpackError<E>> {
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
    use super::*;

    #[test]
    fn a_path_stays_beneath_its_directory() {
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
            assert_eq!(inside::<()>(path.as_bytes()).ok().as_deref(), expected, "{path:?}");
        }
        assert!(inside::<()>(b"\xff").is_err());
    }

    #[test]
    fn only_files_directories_and_links_are_taken() {
        for (kind, path, taken) in [
            (b'0', "a", Some(Wanted::File)),
            (b'\0', "a", Some(Wanted::File)),
            (b'0', "a/", Some(Wanted::Directory)),
            (b'7', "a", Some(Wanted::File)),
            (b'5', "a", Some(Wanted::Directory)),
            (b'2', "a", Some(Wanted::Link)),
            (b'1', "a", Some(Wanted::Copy)),
            (b'3', "a", None),
            (b'4', "a", None),
            (b'6', "a", None),
            (b'S', "a", None),
            (b'Z', "a", None),
        ] {
            assert_eq!(wanted::<()>(kind, path.as_bytes()).ok(), taken, "{kind}");
        }
    }
}
