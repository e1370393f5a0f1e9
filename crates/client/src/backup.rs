//! A backup of the server, as it makes one.

use std::time::Duration;

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::files::Download;
use crate::query::Target;
use crate::transport::{Client, Patience};

/// The files of one session may take so long to be packed, while nothing is sent.
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
