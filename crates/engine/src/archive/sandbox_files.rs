//! The files of a sandbox, for archives: through a use, whose caller learns why the sandbox ended,
//! or without one, for the engine itself.

use std::future::Future;
use std::io;
use std::sync::Arc;

use model::Refusal;
use runtime::{Inside, RuntimeError, Sandbox};

use crate::uses::Use;

/// Files of a sandbox.
pub trait Files: Send + Sync {
    /// The inside of the sandbox.
    fn inside(&self) -> &dyn Inside;

    /// Refuses files for a key that stores as much as it may.
    fn check_room(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Waits for a call of [`Self::inside`], for as long as the sandbox exists.
    fn within<T: Send>(
        &self,
        call: impl Future<Output = Result<T, RuntimeError>> + Send,
    ) -> impl Future<Output = Result<T, Refusal>> + Send;

    /// The refusal that an error of a byte stream means.
    fn explain(&self, error: io::Error) -> impl Future<Output = Refusal> + Send;
}

impl Files for Use {
    fn inside(&self) -> &dyn Inside {
        Self::inside(self)
    }

    fn check_room(&self) -> Result<(), Refusal> {
        Self::check_room(self)
    }

    async fn within<T: Send>(
        &self,
        call: impl Future<Output = Result<T, RuntimeError>> + Send,
    ) -> Result<T, Refusal> {
        Self::within(self, call).await
    }

    async fn explain(&self, error: io::Error) -> Refusal {
        Self::explain(self, error).await
    }
}

/// A sandbox that the engine itself reads and writes.
#[derive(Clone)]
pub struct EngineFiles(pub(crate) Arc<dyn Sandbox>);

impl Files for EngineFiles {
    fn inside(&self) -> &dyn Inside {
        self.0.inside()
    }

    async fn within<T: Send>(
        &self,
        call: impl Future<Output = Result<T, RuntimeError>> + Send,
    ) -> Result<T, Refusal> {
        Ok(call.await?)
    }

    async fn explain(&self, error: io::Error) -> Refusal {
        RuntimeError::from_io("move bytes", error).into()
    }
}
