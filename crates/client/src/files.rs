//! Files of a sandbox: read, written and listed, one by one or a whole directory as an archive.

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RANGE};
use tokio::time::timeout;
use wire::{DirectoryRequest, FileEntry, FileList, MoveRequest, Unpacked};

use crate::body::Upload;
use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::inside::Inside;
use crate::lines::piece;
use crate::query::Target;
use crate::transport::Patience;

const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
const TAR: HeaderValue = HeaderValue::from_static("application/x-tar");
/// The longest time for an upload.
const TRANSFER: std::time::Duration = std::time::Duration::from_hours(24);

impl Inside {
    fn files(&self, path: &str) -> Target {
        self.at().part("files").with("path", path)
    }

    /// Reads a file from an offset on.
    #[boxed]
    pub async fn read_file(&self, path: &str, from: u64) -> Result<Download, ClientError> {
        let mut call = Call::get(self.files(path));
        if from > 0 {
            let range = HeaderValue::from_str(&format!("bytes={from}-"));
            call = call.header(RANGE, range.map_err(|_| ClientError::invalid("no such range"))?);
        }
        self.download(call).await
    }

    /// Reads a whole file of at most `limit` bytes.
    #[boxed]
    pub async fn read_small(&self, path: &str, limit: usize) -> Result<Vec<u8>, ClientError> {
        let mut download = self.read_file(path, 0).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = download.next().await? {
            if bytes.len() + piece.len() > limit {
                return Err(ClientError::invalid(format!("{path} has more than {limit} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// Writes or replaces a file, with permissions such as `0o755` if given.
    pub async fn write_file(
        &self,
        path: &str,
        bytes: impl Into<Bytes>,
        mode: Option<u32>,
    ) -> Result<FileEntry, ClientError> {
        let call = Call::put(self.files(path).maybe("mode", mode.map(octal))).bytes(bytes);
        self.client.json(call.header(CONTENT_TYPE, BYTES)).await
    }

    /// Writes a file from a stream.
    #[boxed]
    pub async fn upload_file(
        &self,
        path: &str,
        upload: Upload,
        mode: Option<u32>,
    ) -> Result<FileEntry, ClientError> {
        let target = self.files(path).maybe("mode", mode.map(octal));
        let call = Call::put(target).header(CONTENT_TYPE, BYTES).stream(upload);
        self.client.json(call.may_take(TRANSFER)).await
    }

    /// Removes a file; with `recursive` a directory with everything in it.
    #[boxed]
    pub async fn remove_file(&self, path: &str, recursive: bool) -> Result<(), ClientError> {
        let target = self.files(path).maybe("recursive", recursive.then_some(true));
        self.client.done(Call::delete(target)).await
    }

    /// The entry at a path. A link is not followed.
    #[boxed]
    pub async fn stat(&self, path: &str) -> Result<FileEntry, ClientError> {
        let target = self.at().part("files").part("stat").with("path", path);
        self.client.json(Call::get(target)).await
    }

    /// One page of a directory.
    #[boxed]
    pub async fn list_files(
        &self,
        path: &str,
        after: Option<&str>,
        limit: Option<u32>,
    ) -> Result<FileList, ClientError> {
        let target = self.at().part("files").part("list").with("path", path);
        self.client.json(Call::get(target.maybe("after", after).maybe("limit", limit))).await
    }

    /// Renames a file or directory.
    #[boxed]
    pub async fn move_file(&self, request: &MoveRequest) -> Result<(), ClientError> {
        self.client.done(Call::post(self.at().part("files").part("move")).json(request)?).await
    }

    /// Makes a directory, and its parents.
    #[boxed]
    pub async fn make_directory(&self, path: &str) -> Result<(), ClientError> {
        let target = self.at().part("files").part("directory");
        let request = DirectoryRequest { path: path.to_owned() };
        self.client.done(Call::post(target).json(&request)?).await
    }

    /// A directory with everything in it, as a tar archive.
    #[boxed]
    pub async fn download_archive(&self, path: &str) -> Result<Download, ClientError> {
        self.download(Call::get(self.at().part("archive").with("path", path))).await
    }

    /// Unpacks a tar archive into a directory.
    #[boxed]
    pub async fn upload_archive(
        &self,
        path: &str,
        archive: Upload,
    ) -> Result<Unpacked, ClientError> {
        let target = self.at().part("archive").with("path", path);
        let call = Call::put(target).header(CONTENT_TYPE, TAR).stream(archive).may_take(TRANSFER);
        self.client.json(call).await
    }

    pub(crate) async fn download(&self, mut call: Call) -> Result<Download, ClientError> {
        let answer = self.client.stream(&mut call).await?;
        Ok(Download { body: answer.into_body(), patience: self.client.patience() })
    }
}

fn octal(mode: u32) -> String {
    format!("{mode:04o}")
}

/// A download.
pub struct Download {
    body: Incoming,
    patience: Patience,
}

impl Download {
    pub(crate) fn new(body: Incoming, patience: Patience) -> Self {
        Self { body, patience }
    }

    /// The next bytes; none at the end. An early end is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let quiet = self.patience.quiet;
        timeout(quiet, piece(&mut self.body)).await.unwrap_or_else(|_| {
            Err(ClientError::Timeout { call: "a download".to_owned(), after: quiet })
        })
    }
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").finish_non_exhaustive()
    }
}
