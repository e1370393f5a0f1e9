//! The files of a sandbox as archives need them: of one that somebody uses, who learns the reason when
//! it ends, or of one that the engine itself looks into.

use std::future::Future;
use std::io;
use std::sync::Arc;

use model::Refusal;
use runtime::{Inside, RuntimeError, Sandbox};

use crate::uses::Use;

/// Files of a sandbox.
pub trait Files: Send + Sync {
    /// What is in the sandbox.
    fn inside(&self) -> &dyn Inside;

    /// Waits for a call of [`Self::inside`], for as long as the sandbox is there.
    fn within<T: Send>(
        &self,
        call: impl Future<Output = Result<T, RuntimeError>> + Send,
    ) -> impl Future<Output = Result<T, Refusal>> + Send;

    /// What an error of a stream of bytes means.
    fn explain(&self, error: io::Error) -> impl Future<Output = Refusal> + Send;
}

impl Files for Use {
    fn inside(&self) -> &dyn Inside {
        Self::inside(self)
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

/// A sandbox that the engine itself looks into.
#[derive(Clone)]
pub struct WithoutUse(pub(crate) Arc<dyn Sandbox>);

impl Files for WithoutUse {
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
