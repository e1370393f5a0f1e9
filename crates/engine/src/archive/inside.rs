//! The files of a sandbox as archives need them: of one that somebody uses, whose end is told to
//! whoever does, or of one that the engine itself looks into.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use model::Refusal;
use runtime::{Entry, FileReader, FileWriter, Page, RuntimeError, Sandbox};

use crate::uses::Use;

/// Files of a sandbox.
#[async_trait]
pub trait Files: Send + Sync {
    /// Part of a directory.
    async fn list_files(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, Refusal>;
    /// Opens a file for reading.
    async fn read_file(&self, path: &str) -> Result<FileReader, Refusal>;
    /// Begins to write a file.
    async fn write_file(&self, path: &str, mode: u32) -> Result<FileWriter, Refusal>;
    /// A file is whole: gives it its name.
    async fn finish_file(&self, writer: FileWriter) -> Result<Entry, Refusal>;
    /// Makes a directory, with those above it.
    async fn make_directory(&self, path: &str) -> Result<(), Refusal>;
    /// Makes a symbolic link.
    async fn make_link(&self, path: &str, target: &str) -> Result<(), Refusal>;
    /// Describes a file, without following a last link.
    async fn stat(&self, path: &str) -> Result<Entry, Refusal>;
    /// Gives a file another name.
    async fn link_file(&self, path: &str, target: &str) -> Result<(), Refusal>;
    /// Changes permissions, and when something was last written.
    async fn set_about(
        &self,
        path: &str,
        mode: Option<u32>,
        modified_ms: Option<i64>,
    ) -> Result<(), Refusal>;
    /// Removes a file or a link.
    async fn remove(&self, path: &str) -> Result<(), Refusal>;
    /// What an error of a stream of bytes means.
    async fn explain(&self, error: io::Error) -> Refusal;
}

#[async_trait]
impl Files for Use {
    async fn list_files(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, Refusal> {
        Self::list_files(self, path, after, limit).await
    }

    async fn read_file(&self, path: &str) -> Result<FileReader, Refusal> {
        Self::read_file(self, path, 0, None).await
    }

    async fn write_file(&self, path: &str, mode: u32) -> Result<FileWriter, Refusal> {
        Self::write_file(self, path, Some(mode)).await
    }

    async fn finish_file(&self, writer: FileWriter) -> Result<Entry, Refusal> {
        Self::finish_file(self, writer).await
    }

    async fn make_directory(&self, path: &str) -> Result<(), Refusal> {
        Self::make_directory(self, path, true).await
    }

    async fn make_link(&self, path: &str, target: &str) -> Result<(), Refusal> {
        Self::make_link(self, path, target).await
    }

    async fn stat(&self, path: &str) -> Result<Entry, Refusal> {
        Self::stat(self, path).await
    }

    async fn link_file(&self, path: &str, target: &str) -> Result<(), Refusal> {
        Self::link_file(self, path, target).await
    }

    async fn set_about(
        &self,
        path: &str,
        mode: Option<u32>,
        modified_ms: Option<i64>,
    ) -> Result<(), Refusal> {
        Self::set_about(self, path, mode, modified_ms).await
    }

    async fn remove(&self, path: &str) -> Result<(), Refusal> {
        Self::remove(self, path, false).await
    }

    async fn explain(&self, error: io::Error) -> Refusal {
        Self::explain(self, error).await
    }
}

/// A sandbox that the engine itself looks into.
#[derive(Clone)]
pub struct Inside(pub(crate) Arc<dyn Sandbox>);

#[async_trait]
impl Files for Inside {
    async fn list_files(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, Refusal> {
        Ok(self.0.list_files(path, after, limit).await?)
    }

    async fn read_file(&self, path: &str) -> Result<FileReader, Refusal> {
        Ok(self.0.read_file(path, 0, None).await?)
    }

    async fn write_file(&self, path: &str, mode: u32) -> Result<FileWriter, Refusal> {
        Ok(self.0.write_file(path, Some(mode)).await?)
    }

    async fn finish_file(&self, writer: FileWriter) -> Result<Entry, Refusal> {
        Ok(writer.finish().await?)
    }

    async fn make_directory(&self, path: &str) -> Result<(), Refusal> {
        Ok(self.0.make_directory(path, true).await?)
    }

    async fn make_link(&self, path: &str, target: &str) -> Result<(), Refusal> {
        Ok(self.0.make_link(path, target).await?)
    }

    async fn stat(&self, path: &str) -> Result<Entry, Refusal> {
        Ok(self.0.stat(path).await?)
    }

    async fn link_file(&self, path: &str, target: &str) -> Result<(), Refusal> {
        Ok(self.0.link_file(path, target).await?)
    }

    async fn set_about(
        &self,
        path: &str,
        mode: Option<u32>,
        modified_ms: Option<i64>,
    ) -> Result<(), Refusal> {
        Ok(self.0.set_about(path, mode, modified_ms).await?)
    }

    async fn remove(&self, path: &str) -> Result<(), Refusal> {
        Ok(self.0.remove(path, false).await?)
    }

    async fn explain(&self, error: io::Error) -> Refusal {
        RuntimeError::from_io("move bytes", error).into()
    }
}
