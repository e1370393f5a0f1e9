//! What can be done inside: programs and files, in a sandbox or in whatever sandbox a session has.

use crate::query::Target;
use crate::transport::Client;

/// The inside of a sandbox, or of the sandbox of a session, which is woken or replaced if need be.
#[derive(Debug, Clone)]
pub struct Inside {
    pub(crate) client: Client,
    pub(crate) at: Target,
}

impl Inside {
    pub(crate) fn at(&self) -> Target {
        self.at.clone()
    }
}
