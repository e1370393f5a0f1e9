//! Keeps sandboxes warm for agents that ask for it with `preWarmCount`. Each warm sandbox of the
//! template fits every agent: it gets the files and settings of the agent when it is handed out. So
//! the pool has room for what all agents ask for together, and the kernel keeps it filled.

use model::{KeyId, Refusal, TemplateName};
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use super::access::OF_ENVIRONMENT;
use super::errors::AshError;
use super::registry;
use crate::app::App;

/// The field of the configuration of an agent.
const FIELD: &str = "preWarmCount";
/// The most that one agent may ask for.
const COUNT_MAX: u64 = 100;
/// The most of all agents together.
const SUM_MAX: u64 = 10_000;

/// What the pool had before agents asked for more, and what it was set to for them.
#[derive(Debug, Default)]
pub(crate) struct Prewarm(Mutex<Option<Sizes>>);

#[derive(Debug, Clone, Copy)]
struct Sizes {
    own: u32,
    set: u32,
}

/// Refuses a configuration that asks for an impossible number.
pub(super) fn check(config: &Map<String, Value>) -> Result<(), AshError> {
    match config.get(FIELD) {
        None | Some(Value::Null) => Ok(()),
        Some(count) if count.as_u64().is_some_and(|count| count <= COUNT_MAX) => Ok(()),
        Some(_) => {
            let cause = format!("config/{FIELD} must be an integer from 0 to {COUNT_MAX}");
            Err(AshError::invalid(cause))
        }
    }
}

/// How many warm sandboxes a configuration asks for.
pub(super) fn count(config: &Map<String, Value>) -> u64 {
    config.get(FIELD).and_then(Value::as_u64).map_or(0, |count| count.min(COUNT_MAX))
}

/// Sizes the pool for all agents there are. An operator who sets another size later sets what the
/// pool has without them.
pub(super) async fn size_pool(app: &App) -> Result<(), Refusal> {
    let Ok(template) = TemplateName::new(&app.options.template) else { return Ok(()) };
    // The sum is read while no other change can set an older one.
    let mut sizes = app.prewarm.0.lock().await;
    let Some(pool) = app.engine.pool(&template) else { return Ok(()) };
    let own = match *sizes {
        Some(Sizes { own, set }) if set == pool.pool_size => own,
        Some(_) | None => pool.pool_size,
    };
    let wanted = u32::try_from(sum(app).await?).unwrap_or(u32::MAX);
    let set = own.max(wanted);
    if set != pool.pool_size {
        app.engine.resize_pool(&template, Some(set), None).await?;
    }
    *sizes = Some(Sizes { own, set });
    Ok(())
}

/// What all agents of all keys ask for.
async fn sum(app: &App) -> Result<u64, Refusal> {
    let mut sum = 0;
    let keys: Vec<KeyId> = app.engine.keys().iter().map(|key| key.id).collect();
    for key in keys.into_iter().chain([OF_ENVIRONMENT]) {
        let agents = registry::all(app, key).await?;
        sum += agents.iter().map(|agent| count(&agent.config)).sum::<u64>();
    }
    Ok(sum.min(SUM_MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_of_warm_sandboxes_are_whole_numbers_within_bounds() {
        for (given, expected) in [
            (json!({}), Some(0)),
            (json!({"preWarmCount": null}), Some(0)),
            (json!({"preWarmCount": 0}), Some(0)),
            (json!({"preWarmCount": 3}), Some(3)),
            (json!({"preWarmCount": 100}), Some(100)),
            (json!({"preWarmCount": 101}), None),
            (json!({"preWarmCount": -1}), None),
            (json!({"preWarmCount": 1.5}), None),
            (json!({"preWarmCount": "2"}), None),
        ] {
            let Value::Object(config) = given else { unreachable!("an object") };
            let found = check(&config).ok().map(|()| count(&config));
            assert_eq!(found, expected, "{config:?}");
        }
    }
}
