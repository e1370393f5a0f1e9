//! The first key: made at the first start, when no client could ask for one, in a file that only
//! its owner can read. It is never logged and never printed.

use engine::Engine;
use model::{KeyId, Role};

use super::data_dir::DataDir;
use crate::failure::Failure;

const NAME: &str = "admin";

/// Makes a key if there is none, or if `another` is set.
pub(super) async fn ensure(
    engine: &Engine,
    place: &DataDir,
    another: bool,
) -> Result<Option<KeyId>, Failure> {
    let first = engine.keys().is_empty();
    if !first && !another {
        if !place.key_file().exists() {
            tracing::warn!(
                file = %place.key_file().display(),
                "the file with the first key is missing; `shoal serve --new-admin-key` makes another key"
            );
        }
        return Ok(None);
    }
    let made = engine.create_key(NAME, Role::Admin, None).await.map_err(|refusal| {
        Failure::new("cannot make a key", &refusal).remedy(refusal.code.remedy())
    })?;
    place.write_key(&made.secret)?;
    Ok(Some(made.record.id))
}
