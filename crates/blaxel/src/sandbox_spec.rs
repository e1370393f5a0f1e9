//! What a request to create or change a sandbox asks for. An image means a template, and the
//! template sets the limits. What this server cannot give is refused, never kept and ignored: a
//! volume, another network, more memory, another environment for a sandbox that exists.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{ErrorCode, Refusal, Template, TemplateName};
use serde_json::{Value, json};

use super::errors::BlaxelError;
use crate::app::App;

/// The image that clients of Blaxel ask for unless their user names another.
const DEFAULT_IMAGE: &str = "blaxel/base-image";
/// The memory in MB that they ask for unless their user says how much.
const DEFAULT_MEMORY_MB: u64 = 4096;

/// Fields that no sandbox of this server can have, and why.
const NOT_HERE: [(&str, &str); 6] = [
    (
        "/spec/network",
        "a template decides what its sandboxes reach: use one with the right network",
    ),
    ("/spec/vpc", "private networks are not offered here"),
    ("/spec/runtime/extraArgs", "extra arguments are not offered here"),
    ("/spec/runtime/snapshotEnabled", "snapshots are not offered here"),
    (
        "/spec/runtime/standbyGracePeriodSeconds",
        "freeze_after_ms of the template says when it sleeps",
    ),
    ("/spec/runtime/terminationGracePeriodSeconds", "processes end without a grace period"),
];

/// A request that cannot be fulfilled, with the status that clients of Blaxel show the text of.
fn refused(code: ErrorCode, cause: String) -> BlaxelError {
    BlaxelError::from(Refusal::new(code, cause)).with_status(400)
}

pub(super) fn invalid(cause: String) -> BlaxelError {
    refused(ErrorCode::InvalidArgument, cause)
}

/// Whether a field asks for nothing.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// Refuses a request for anything that this server cannot give.
pub(super) fn check(object: &Value) -> Result<(), BlaxelError> {
    if let Some(volume) = object["spec"]["volumes"].as_array().and_then(|all| all.first()) {
        let name = volume["name"].as_str().unwrap_or_default();
        let cause = format!(
            "spec.volumes: volume {name:?} does not exist: volumes are not offered here, and \
             /workspace keeps its files"
        );
        return Err(refused(ErrorCode::Unsupported, cause));
    }
    for (field, why) in NOT_HERE {
        if object.pointer(field).is_some_and(|value| !is_nothing(value)) {
            let field = field.trim_start_matches('/').replace('/', ".");
            return Err(refused(ErrorCode::Unsupported, format!("{field}: {why}")));
        }
    }
    if object["spec"]["enabled"] == json!(false) {
        let cause = "spec.enabled: a sandbox cannot be disabled here: delete it";
        return Err(refused(ErrorCode::Unsupported, cause.to_owned()));
    }
    let external = &object["metadata"]["externalId"];
    if external.is_null() || external.is_string() {
        return Ok(());
    }
    Err(invalid("metadata.externalId: a text is expected".to_owned()))
}

/// The template of sandboxes whose image is not named.
pub(super) fn default_template(app: &App) -> Result<Arc<Template>, BlaxelError> {
    let name = TemplateName::new(&app.options.template)
        .map_err(|error| BlaxelError::new(500, format!("blaxel.template: {error}")))?;
    Ok(app.engine.known_template(&name)?)
}

fn image(object: &Value) -> &str {
    object["spec"]["runtime"]["image"].as_str().unwrap_or_default()
}

/// The template that an image means: one of its name, or of its last part without a tag. The
/// image that clients ask for by themselves means the default.
pub(super) fn template(app: &App, object: &Value) -> Result<Arc<Template>, BlaxelError> {
    let image = image(object);
    if image.is_empty() {
        return default_template(app);
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    let last = last.split(':').next().unwrap_or_default();
    let known = [image, last]
        .into_iter()
        .find_map(|word| TemplateName::new(word).ok().and_then(|name| app.engine.template(&name)));
    match known {
        Some(template) => Ok(template),
        None if image.split(':').next() == Some(DEFAULT_IMAGE) => default_template(app),
        None => {
            let cause = format!(
                "spec.runtime.image: image {image:?} not found: give the name of a template, or \
                 leave it out to get {:?}",
                app.options.template
            );
            Err(invalid(cause))
        }
    }
}

/// Checks that a sandbox of the template has as much memory as is asked for. What clients ask for
/// by themselves is no wish.
pub(super) fn check_memory(object: &Value, template: &Template) -> Result<(), BlaxelError> {
    let (asked, has) = (&object["spec"]["runtime"]["memory"], template.limits.memory_mb);
    let is_given = match asked.as_u64() {
        None => asked.is_null(),
        Some(mb) => mb <= u64::from(has) || mb == DEFAULT_MEMORY_MB,
    };
    if is_given {
        return Ok(());
    }
    let name = &template.name;
    let cause = format!(
        "spec.runtime.memory: {asked} MB were asked for, and template {name} gives its sandboxes \
         {has} MB: ask for no more, or name an image with more"
    );
    Err(invalid(cause))
}

/// The variables that are asked for.
pub(super) fn env(object: &Value) -> Result<BTreeMap<String, String>, BlaxelError> {
    let envs = match &object["spec"]["runtime"]["envs"] {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Array(envs) => envs,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            return Err(invalid("spec.runtime.envs: a list is expected".to_owned()));
        }
    };
    let pair = |env: &Value| {
        let (name, value) = (env["name"].as_str(), env["value"].as_str());
        let both = name.zip(value).map(|(name, value)| (name.to_owned(), value.to_owned()));
        both.ok_or_else(|| {
            invalid("spec.runtime.envs: each needs a name and a value, both texts".to_owned())
        })
    };
    envs.iter().map(pair).collect()
}

/// The description of a sandbox as it becomes after a change, or why that cannot be: the image and
/// the environment are what they were when the sandbox was created.
pub(super) fn changed(app: &App, before: &Value, mut after: Value) -> Result<Value, BlaxelError> {
    check(&after)?;
    let kept = &before["spec"]["runtime"];
    if !image(&after).is_empty() && image(&after) != image(before) {
        let (old, new) = (template(app, before), template(app, &after)?);
        if !old.is_ok_and(|old| old.name == new.name) {
            let cause =
                "spec.runtime.image: the image of a sandbox cannot be changed: create another";
            return Err(refused(ErrorCode::Unsupported, cause.to_owned()));
        }
    }
    let memory_mb = match template(app, before) {
        Ok(template) => {
            check_memory(&after, &template)?;
            Some(template.limits.memory_mb)
        }
        // A template that was removed says nothing about the sandboxes that it had.
        Err(_) => None,
    };
    if !after["spec"]["runtime"]["envs"].is_null()
        && env(&after)? != env(before).unwrap_or_default()
    {
        let cause = "spec.runtime.envs: the environment of a sandbox is set when it is created: \
                     create another, or give `env` to a process";
        return Err(refused(ErrorCode::Unsupported, cause.to_owned()));
    }
    let runtime = runtime_of(&mut after)?;
    if let Some(memory_mb) = memory_mb {
        runtime["memory"] = memory_mb.into();
    }
    for field in ["image", "envs"] {
        if runtime[field].is_null() && !kept[field].is_null() {
            runtime[field] = kept[field].clone();
        }
    }
    Ok(after)
}

/// The runtime of a description, made if it has none.
pub(super) fn runtime_of(object: &mut Value) -> Result<&mut Value, BlaxelError> {
    for path in ["/spec", "/spec/runtime"] {
        let (above, name) = path.rsplit_once('/').unwrap_or_default();
        let Some(above) = object.pointer_mut(above) else { break };
        if above[name].is_null() {
            above[name] = json!({});
        }
        if !above[name].is_object() {
            let field = path.trim_start_matches('/').replace('/', ".");
            return Err(invalid(format!("{field}: an object is expected")));
        }
    }
    Ok(&mut object["spec"]["runtime"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_environment_is_read_from_where_clients_put_it() {
        let of = |envs: Value| env(&json!({"spec": {"runtime": {"envs": envs}}}));
        let one = json!([{"name": "A", "value": "1", "secret": true}]);
        assert_eq!(of(one).unwrap(), BTreeMap::from([("A".to_owned(), "1".to_owned())]));
        assert_eq!(env(&json!({})).unwrap(), BTreeMap::new());
        for bad in [json!([{"name": "B"}]), json!(["nonsense"]), json!({"A": "1"})] {
            assert_eq!(of(bad).unwrap_err().status, 400);
        }
    }

    #[test]
    fn sandbox_with_more_than_its_template_has_is_refused() {
        let mut template = Template::named(TemplateName::new("small").unwrap());
        template.limits.memory_mb = 512;
        let of = |memory: Value| {
            check_memory(&json!({"spec": {"runtime": {"memory": memory}}}), &template)
        };
        for given in [Value::Null, json!(128), json!(512), json!(DEFAULT_MEMORY_MB)] {
            of(given).unwrap();
        }
        for refused in [json!(513), json!(-1), json!("much"), json!(8192)] {
            let error = of(refused.clone()).unwrap_err();
            assert_eq!(error.status, 400, "{refused}");
            assert!(error.text.contains("512 MB"), "{error:?}");
        }
    }

    #[test]
    fn sandbox_features_that_are_missing_are_refused_and_what_clients_send_is_not() {
        let sent = json!({"metadata": {"name": "a", "externalId": "x"}, "spec": {
            "enabled": true, "region": "us", "volumes": [], "network": {}, "vpc": null,
            "runtime": {"generation": "mk3", "extraArgs": {}, "snapshotEnabled": false,
                "ports": [{"target": 80}]},
        }});
        check(&sent).unwrap();
        for (field, value) in [
            ("/spec/volumes", json!([{"name": "data", "mountPath": "/data"}])),
            ("/spec/network", json!({"allowedDomains": ["a.example"]})),
            ("/spec/vpc", json!("mine")),
            ("/spec/enabled", json!(false)),
            ("/metadata/externalId", json!(7)),
            ("/spec/runtime/extraArgs", json!({"a": "b"})),
            ("/spec/runtime/snapshotEnabled", json!(true)),
        ] {
            let mut asked = sent.clone();
            *asked.pointer_mut(field).unwrap() = value;
            let error = check(&asked).unwrap_err();
            assert_eq!(error.status, 400, "{field}");
            assert!(error.text.contains(field.rsplit('/').next().unwrap()), "{error:?}");
        }
    }
}
