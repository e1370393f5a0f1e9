//! Puts an archive together while it is sent: directories are listed and files read by the guest,
//! a little at a time. Links stay links. What cannot be put in (pipes, devices, sockets, files that
//! cannot be read, names that are not UTF-8) is left out and named in a remark.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;

use bytes::BytesMut;
use model::{ErrorCode, Refusal};
use runtime::{Entry, EntryKind, FileReader, Page};
use tar::EntryType;
use tokio::io::AsyncReadExt as _;
use workspaces::tar::{Written, end, padding};

use super::inside::Files;

const LIST: u32 = 500;
const READ_BYTES: usize = 128 * 1024;
/// Headers are collected until there are so many bytes of them.
const PIECE_BYTES: usize = 32 * 1024;
/// How many of those that are left out are named in one remark.
const NAMED_MAX: usize = 100;
const DEPTH_MAX: usize = 256;

/// An archive that is being put together.
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
    owner: (u32, u32),
    is_over: bool,
}

struct Directory {
    /// Its path beneath the root, with a slash at the end unless it is the root.
    path: String,
    entries: VecDeque<Entry>,
    more_after: Option<Vec<u8>>,
}

struct Contents {
    reader: FileReader,
    left: u64,
    padding: u64,
}

impl Directory {
    fn new(path: String, page: Page) -> Self {
        let more_after = last_name(&page);
        Self { path, entries: page.entries.into(), more_after }
    }
}

/// A file that is gone or closed to the user is no reason to give up the rest.
fn unless_unreadable<T>(result: Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    let unreadable = [ErrorCode::PathNotFound, ErrorCode::PathDenied, ErrorCode::PathWrongKind];
    match result {
        Ok(value) => Ok(Some(value)),
        Err(refusal) if unreadable.contains(&refusal.code) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

fn last_name(page: &Page) -> Option<Vec<u8>> {
    page.entries.last().filter(|_| page.more).map(|entry| entry.name.clone())
}

impl<F: Files> Packing<F> {
    /// Begins with a directory; that it is none is told at once.
    pub async fn start(used: F, root: &str, entries_max: u64) -> Result<Self, Refusal> {
        let page = used.list_files(root, None, LIST).await?;
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
            owner: (0, 0),
            is_over: false,
        })
    }

    /// Whose everything in it is: nobody's in particular, unless it is said.
    #[must_use]
    pub fn owned_by(self, user: u32) -> Self {
        Self { owner: (user, user), ..self }
    }

    /// How many things could not be put in.
    pub fn left_out(&self) -> u64 {
        self.left_out_in_all
    }

    /// The next bytes; none at the end. After an error there are no more.
    pub async fn next_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if self.ready.len() >= PIECE_BYTES || self.is_over && !self.ready.is_empty() {
                return Ok(Some(std::mem::take(&mut self.ready)));
            }
            if self.is_over {
                return Ok(None);
            }
            if self.file.is_some() {
                self.read().await?;
            } else {
                self.step().await.map_err(io::Error::other)?;
            }
        }
    }

    /// Some of the file that is being put in.
    async fn read(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if file.left > 0 {
            let mut buffer = BytesMut::with_capacity(READ_BYTES);
            let mut limited = (&mut file.reader).take(file.left.min(READ_BYTES as u64));
            let read = limited.read_buf(&mut buffer).await?;
            if read == 0 {
                // Its size is in the archive already.
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
                Ok(name) => self.put(&entry, format!("{above}{name}")).await,
                Err(error) => {
                    let name = String::from_utf8_lossy(error.as_bytes()).into_owned();
                    self.leave_out(format!("{above}{name}"));
                    Ok(())
                }
            };
        }
        let Some(after) = directory.more_after.take() else {
            self.open.pop();
            return Ok(());
        };
        let path = format!("{}/{}", self.root, directory.path);
        let page = self.used.list_files(&path, Some(&after), LIST).await?;
        if let Some(directory) = self.open.last_mut() {
            directory.more_after = last_name(&page);
            directory.entries = page.entries.into();
        }
        Ok(())
    }

    async fn put(&mut self, entry: &Entry, path: String) -> Result<(), Refusal> {
        self.entries += 1;
        if self.entries > self.entries_max {
            let cause = format!("there are more than {} files", self.entries_max);
            return Err(Refusal::new(ErrorCode::TooLarge, cause));
        }
        let at = format!("{}/{path}", self.root);
        match entry.kind {
            EntryKind::Other => self.leave_out(path),
            EntryKind::Link => self.write(EntryType::Symlink, entry, &path, 0),
            EntryKind::Directory if self.open.len() == DEPTH_MAX => self.leave_out(path),
            EntryKind::Directory => {
                let Some(page) = unless_unreadable(self.used.list_files(&at, None, LIST).await)?
                else {
                    self.leave_out(path);
                    return Ok(());
                };
                let path = format!("{path}/");
                self.write(EntryType::Directory, entry, &path, 0);
                self.open.push(Directory::new(path, page));
            }
            EntryKind::File => {
                let Some(reader) = unless_unreadable(self.used.read_file(&at).await)? else {
                    self.leave_out(path);
                    return Ok(());
                };
                let size = reader.entry.size;
                self.write(EntryType::Regular, entry, &path, size);
                self.file = Some(Contents { reader, left: size, padding: padding(size) });
            }
        }
        Ok(())
    }

    fn write(&mut self, kind: EntryType, entry: &Entry, path: &str, size: u64) {
        let comment = self.remark();
        let written = Written {
            kind,
            path: path.as_bytes(),
            mode: entry.mode,
            owner: self.owner,
            size,
            modified: (entry.modified_ms.div_euclid(1000), 0),
            target: entry.target.as_deref().unwrap_or_default(),
            attributes: &[],
            comment,
        };
        written.write(&mut self.ready);
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
        if let comment @ Some(_) = self.remark() {
            // A remark needs an entry to be about: the directory itself does no harm.
            let written = Written {
                kind: EntryType::Directory,
                path: b"./",
                mode: 0o755,
                owner: self.owner,
                size: 0,
                modified: (0, 0),
                target: b"",
                attributes: &[],
                comment,
            };
            written.write(&mut self.ready);
        }
        end(&mut self.ready);
        self.is_over = true;
    }
}
