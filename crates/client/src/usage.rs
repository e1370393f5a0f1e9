//! What keys have used since they exist.

use model::KeyId;
use wire::{Usage, UsageList};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::query::Target;
use crate::transport::Client;

impl Client {
    /// What keys have used: all of them for an administrator, else the caller's own; or one key.
    #[boxed]
    pub async fn usage(&self, key: Option<KeyId>) -> Result<Vec<Usage>, ClientError> {
        let list: UsageList =
            self.json(Call::get(Target::new("/v1/usage").maybe("key", key))).await?;
        Ok(list.usage)
    }
}
