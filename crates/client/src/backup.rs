//! Downloads a backup of the server.

use std::time::Duration;

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::files::Download;
use crate::query::Target;
use crate::transport::{Client, Patience};

/// How long the server may pack the files of one session while it sends nothing.
const PACKING: Duration = Duration::from_hours(4);

impl Client {
    /// The bytes of a tar archive with everything but the keys. Its last member says whether it is
    /// whole: `complete.json`, or `failed.json` with the reason.
    #[boxed]
    pub async fn backup(&self) -> Result<Download, ClientError> {
        let mut call = Call::post(Target::new("/v1/backup")).once().may_take(PACKING);
        let answer = self.stream(&mut call).await?;
        let patience = Patience { quiet: PACKING, ..self.patience() };
        Ok(Download::new(answer.into_body(), patience))
    }
}
