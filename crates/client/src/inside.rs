//! The inside of a sandbox: programs, files and ports, by the id of a sandbox or of a session.

use crate::query::Target;
use crate::transport::Client;

/// The inside of a sandbox, or of the sandbox of a session, which is resumed or replaced if needed.
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
