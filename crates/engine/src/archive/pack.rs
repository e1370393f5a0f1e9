//! Packs an archive while it is sent: the guest lists directories and reads files, a little at a
//! time. Links stay links. What cannot be packed (pipes, devices, sockets, unreadable files, names
//! that are not UTF-8) is left out and named in a remark. An archive for a restore has more in it:
//! files that their owner closed are opened for a moment, and hard links stay hard links.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io;

use bytes::BytesMut;
use model::{ErrorCode, Refusal};
use runtime::{Entry, EntryKind, FileReader, Page};
use tar_stream::{Kind, NewEntry, end, padding};
use tokio::io::AsyncReadExt as _;

use super::sandbox_files::Files;
use crate::uploads::PLACE_NAME;

const LIST: u32 = 500;
const READ_BYTES: usize = 128 * 1024;
/// Headers are collected up to this many bytes.
const PIECE_BYTES: usize = 32 * 1024;
/// How many left-out files one remark names.
const NAMED_MAX: usize = 100;
const DEPTH_MAX: usize = 256;

/// An archive that is being packed.
pub struct Packing<F> {
    used: F,
    root: String,
    /// Directories that are not done, the innermost last.
    open: Vec<Directory>,
    file: Option<Contents>,
    left_out: Vec<String>,
    left_out_more: u64,
    left_out_in_all: u64,
    entries: u64,
    entries_max: u64,
    ready: Vec<u8>,
    restorable: Option<Restorable>,
    is_complete: bool,
}

/// What an archive for a restore needs besides.
struct Restorable {
    owner: (u32, u32),
    /// The first name of each file with several hard links.
    first_names: BTreeMap<u64, String>,
    /// The bytes that files may still claim to have.
    claims_left: u64,
    lost: Lost,
}

/// Files that a restore will miss.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// How many.
    pub count: u64,
    /// The path of the first.
    pub first: String,
}

struct Directory {
    /// Its path beneath the root, with a slash at the end unless it is the root.
    path: String,
    entries: VecDeque<Entry>,
    more_after: Option<Vec<u8>>,
    /// The permissions it had, if it had to be opened.
    closed: Option<u32>,
}

struct Contents {
    reader: FileReader,
    left: u64,
    padding: u64,
}

impl Directory {
    fn new(path: String, page: Page) -> Self {
        let more_after = last_name(&page);
        Self { path, entries: page.entries.into(), more_after, closed: None }
    }

    fn place(&self, root: &str) -> String {
        format!("{root}/{}", self.path.trim_end_matches('/'))
    }
}

/// Whether the owner lacks the permission to read it.
const fn is_closed(entry: &Entry) -> bool {
    match entry.kind {
        EntryKind::Directory => entry.mode & 0o500 != 0o500,
        EntryKind::File => entry.mode & 0o400 == 0,
        EntryKind::Link | EntryKind::Other => false,
    }
}

/// Permissions that an owner may set.
const fn settable(mode: u32) -> u32 {
    mode & 0o1777
}

const fn opened(mode: u32) -> u32 {
    settable(mode) | 0o500
}

/// Whether an entry is where parts of uploads are: an upload ends with its sandbox.
fn is_of_uploads(root: &str, above: &str, name: &str) -> bool {
    let is_workspace = above.is_empty() || root.is_empty() && above == "workspace/";
    is_workspace && name == PLACE_NAME
}

/// The result of reading something that was listed.
enum Look<T> {
    At(T),
    /// It was removed meanwhile.
    Gone,
    /// The sandbox user may not read it.
    Closed,
}

fn last_name(page: &Page) -> Option<Vec<u8>> {
    page.entries.last().filter(|_| page.more).map(|entry| entry.name.clone())
}

impl<F: Files> Packing<F> {
    /// Begins with a directory; refused at once if it is none.
    pub async fn start(used: F, root: &str, entries_max: u64) -> Result<Self, Refusal> {
        let page = used.within(used.inside().list_files(root, None, LIST)).await?;
        Ok(Self {
            used,
            root: root.trim_end_matches('/').to_owned(),
            open: vec![Directory::new(String::new(), page)],
            file: None,
            left_out: Vec::new(),
            left_out_more: 0,
            left_out_in_all: 0,
            entries: 0,
            entries_max,
            ready: Vec::new(),
            restorable: None,
            is_complete: false,
        })
    }

    /// Begins an archive for a restore, with this user as the owner. Files may claim to have so
    /// many bytes: a few sparse files would otherwise take hours to read.
    pub async fn start_for_restore(
        used: F,
        root: &str,
        user: u32,
        claims_left: u64,
    ) -> Result<Self, Refusal> {
        let top = used.within(used.inside().stat(root)).await?;
        let closed = is_closed(&top).then_some(top.mode);
        if let Some(mode) = closed {
            used.within(used.inside().set_metadata(root, Some(opened(mode)), None)).await?;
        }
        let mut packing = Self::start(used, root, u64::MAX).await?;
        packing.open[0].closed = closed;
        packing.restorable = Some(Restorable {
            owner: (user, user),
            first_names: BTreeMap::new(),
            claims_left,
            lost: Lost::default(),
        });
        packing.write(Kind::Directory, &top, "./", 0, b"");
        Ok(packing)
    }

    /// How many entries were left out.
    pub fn left_out(&self) -> u64 {
        self.left_out_in_all
    }

    /// Those of them that a restore will miss. Pipes and sockets are useless without their
    /// programs.
    pub fn lost(&self) -> Lost {
        self.restorable.as_ref().map(|restorable| restorable.lost.clone()).unwrap_or_default()
    }

    /// The next bytes; none at the end. After an error there are none.
    pub async fn next_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if self.ready.len() >= PIECE_BYTES || self.is_complete && !self.ready.is_empty() {
                return Ok(Some(std::mem::take(&mut self.ready)));
            }
            if self.is_complete {
                return Ok(None);
            }
            if self.file.is_some() {
                self.read().await?;
            } else {
                self.step().await.map_err(io::Error::other)?;
            }
        }
    }

    /// Some bytes of the current file.
    async fn read(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if file.left > 0 {
            let mut buffer = BytesMut::with_capacity(READ_BYTES);
            let mut limited = (&mut file.reader).take(file.left.min(READ_BYTES as u64));
            let read = limited.read_buf(&mut buffer).await?;
            if read == 0 {
                // The archive has its size already.
                return Err(io::Error::other("a file became shorter while it was read"));
            }
            file.left -= read as u64;
            self.ready.extend_from_slice(&buffer);
            return Ok(());
        }
        self.ready.resize(self.ready.len() + file.padding as usize, 0);
        self.file = None;
        Ok(())
    }

    /// The next entry, or the end.
    async fn step(&mut self) -> Result<(), Refusal> {
        let Some(directory) = self.open.last_mut() else {
            self.end();
            return Ok(());
        };
        if let Some(entry) = directory.entries.pop_front() {
            let path = String::from_utf8(entry.name.clone());
            let above = directory.path.clone();
            return match path {
                Ok(name) if is_of_uploads(&self.root, &above, &name) => Ok(()),
                Ok(name) => self.put(&entry, format!("{above}{name}")).await,
                Err(error) => {
                    let name = String::from_utf8_lossy(error.as_bytes()).into_owned();
                    self.lose(format!("{above}{name}"));
                    Ok(())
                }
            };
        }
        let Some(after) = directory.more_after.take() else {
            let done = self.open.pop();
            if let Some((done, mode)) = done.and_then(|done| done.closed.map(|mode| (done, mode))) {
                self.close(&done.place(&self.root), mode).await?;
            }
            return Ok(());
        };
        let path = format!("{}/{}", self.root, directory.path);
        let page =
            self.used.within(self.used.inside().list_files(&path, Some(&after), LIST)).await?;
        if let Some(directory) = self.open.last_mut() {
            directory.more_after = last_name(&page);
            directory.entries = page.entries.into();
        }
        Ok(())
    }

    async fn put(&mut self, entry: &Entry, path: String) -> Result<(), Refusal> {
        self.entries += 1;
        if self.entries > self.entries_max {
            let cause = format!("the directory has more than {} files", self.entries_max);
            return Err(Refusal::new(ErrorCode::TooLarge, cause));
        }
        let at = format!("{}/{path}", self.root);
        match entry.kind {
            EntryKind::Other => self.leave_out(path),
            EntryKind::Link => {
                let target = entry.target.as_deref().unwrap_or_default();
                if self.restorable.is_some() && std::str::from_utf8(target).is_err() {
                    self.lose(path);
                } else {
                    self.write(Kind::Symlink, entry, &path, 0, target);
                }
            }
            EntryKind::Directory if self.open.len() == DEPTH_MAX => self.lose(path),
            EntryKind::Directory => self.put_directory(entry, path, &at).await?,
            EntryKind::File => self.put_file(entry, path, &at).await?,
        }
        Ok(())
    }

    async fn put_directory(
        &mut self,
        entry: &Entry,
        path: String,
        at: &str,
    ) -> Result<(), Refusal> {
        let closed = self.open_up(entry, at).await?;
        let listed = self.used.within(self.used.inside().list_files(at, None, LIST)).await;
        let found = Self::look(listed);
        if let (Some(mode), Ok(Look::Gone | Look::Closed) | Err(_)) = (closed, &found) {
            self.close(at, mode).await?;
        }
        match found? {
            Look::At(page) => {
                let path = format!("{path}/");
                self.write(Kind::Directory, entry, &path, 0, b"");
                self.open.push(Directory { closed, ..Directory::new(path, page) });
            }
            Look::Gone => self.leave_out(path),
            Look::Closed => self.lose(path),
        }
        Ok(())
    }

    async fn put_file(&mut self, entry: &Entry, path: String, at: &str) -> Result<(), Refusal> {
        if let Some(first) = self.known_as(entry) {
            self.write(Kind::Hardlink, entry, &path, 0, first.as_bytes());
            return Ok(());
        }
        let closed = self.open_up(entry, at).await?;
        let reader = self.used.within(self.used.inside().read_file(at, 0, None)).await;
        if let Some(mode) = closed {
            self.close(at, mode).await?;
        }
        let reader = match Self::look(reader)? {
            Look::At(reader) => reader,
            Look::Gone => {
                self.leave_out(path);
                return Ok(());
            }
            Look::Closed => {
                self.lose(path);
                return Ok(());
            }
        };
        let size = reader.entry.size;
        if let Some(restorable) = &mut self.restorable {
            let Some(claims_left) = restorable.claims_left.checked_sub(size) else {
                self.lose(path);
                return Ok(());
            };
            restorable.claims_left = claims_left;
            if let Some(shared) = reader.entry.shared {
                restorable.first_names.insert(shared, path.clone());
            }
        }
        self.write(Kind::File, entry, &path, size, b"");
        self.file = Some(Contents { reader, left: size, padding: padding(size) });
        Ok(())
    }

    /// The path by which a file is in the archive already.
    fn known_as(&self, entry: &Entry) -> Option<String> {
        self.restorable.as_ref()?.first_names.get(&entry.shared?).cloned()
    }

    /// A missing or unreadable file does not fail the rest. Neither does one that cannot be read at
    /// all, such as the scale file, or whose path is too long.
    fn look<T>(result: Result<T, Refusal>) -> Result<Look<T>, Refusal> {
        const UNREADABLE: [ErrorCode; 3] =
            [ErrorCode::PathDenied, ErrorCode::PathWrongKind, ErrorCode::InvalidArgument];
        match result {
            Ok(value) => Ok(Look::At(value)),
            Err(refusal) if refusal.code == ErrorCode::PathNotFound => Ok(Look::Gone),
            Err(refusal) if UNREADABLE.contains(&refusal.code) => Ok(Look::Closed),
            Err(refusal) => Err(refusal),
        }
    }

    /// Lets the owner read a closed file or directory, and returns its earlier permissions.
    async fn open_up(&mut self, entry: &Entry, at: &str) -> Result<Option<u32>, Refusal> {
        if self.restorable.is_none() || !is_closed(entry) {
            return Ok(None);
        }
        let set = self.used.inside().set_metadata(at, Some(opened(entry.mode)), None);
        let set = self.used.within(set).await;
        Ok(match Self::look(set)? {
            Look::At(()) => Some(entry.mode),
            Look::Gone | Look::Closed => None,
        })
    }

    /// Restores the permissions.
    async fn close(&mut self, at: &str, mode: u32) -> Result<(), Refusal> {
        let set = self.used.inside().set_metadata(at, Some(settable(mode)), None);
        let set = self.used.within(set).await;
        Self::look(set).map(|_| ())
    }

    /// Restores all permissions when packing stops early.
    pub async fn give_up(mut self) {
        while let Some(directory) = self.open.pop() {
            if let Some(mode) = directory.closed {
                // The caller has reported the cause already.
                if self.close(&directory.place(&self.root), mode).await.is_err() {
                    return;
                }
            }
        }
    }

    fn write(&mut self, kind: Kind, entry: &Entry, path: &str, size: u64, target: &[u8]) {
        let comment = self.remark();
        let written = NewEntry {
            kind,
            path: path.as_bytes(),
            mode: entry.mode,
            owner: self.owner(),
            size,
            modified: (entry.modified_ms.div_euclid(1000), 0),
            target,
            attributes: &[],
            comment,
        };
        written.write(&mut self.ready);
    }

    /// The owner of all entries: the user for a restore, else root.
    fn owner(&self) -> (u32, u32) {
        self.restorable.as_ref().map_or((0, 0), |restorable| restorable.owner)
    }

    /// Leaves out a file that a restore will miss.
    fn lose(&mut self, path: String) {
        if let Some(restorable) = &mut self.restorable {
            if restorable.lost.count == 0 {
                restorable.lost.first.clone_from(&path);
            }
            restorable.lost.count += 1;
        }
        self.leave_out(path);
    }

    fn leave_out(&mut self, path: String) {
        self.left_out_in_all += 1;
        if self.left_out.len() < NAMED_MAX {
            self.left_out.push(path);
        } else {
            self.left_out_more += 1;
        }
    }

    fn remark(&mut self) -> Option<String> {
        if self.left_out.is_empty() {
            return None;
        }
        let mut remark = format!("left out: {}", self.left_out.join(", "));
        if self.left_out_more > 0 {
            // Writing to a string cannot fail.
            let _ = write!(remark, " and {} more", self.left_out_more);
        }
        self.left_out.clear();
        self.left_out_more = 0;
        Some(remark)
    }

    fn end(&mut self) {
        if let comment @ Some(_) = self.remark()
            && self.restorable.is_none()
        {
            // A remark needs an entry: the directory itself does no harm.
            let written = NewEntry {
                kind: Kind::Directory,
                path: b"./",
                mode: 0o755,
                owner: self.owner(),
                size: 0,
                modified: (0, 0),
                target: b"",
                attributes: &[],
                comment,
            };
            written.write(&mut self.ready);
        }
        end(&mut self.ready);
        self.is_complete = true;
    }
}
