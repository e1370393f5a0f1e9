//! Blaxel's `ttl`, `expires` and expiration policies, as the deadline of a session. All of them
//! delete the sandbox; the first one that comes counts.

use model::{Deadline, DeadlineAction, Wall};
use serde_json::Value;

use super::errors::BlaxelError;
use super::sandbox_spec::invalid;

/// A deadline, and the field that gave its time.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) deadline: Deadline,
    field: &'static str,
}

impl Asked {
    /// Refuses a time that cannot be set any more, or not yet.
    pub(super) fn refuse_wrong_time(&self, now: Wall) -> Result<(), BlaxelError> {
        let (at, field) = (self.deadline.at, self.field);
        if at.is_some_and(|at| at <= now) {
            return Err(invalid(format!("{field}: the time has passed")));
        }
        if at.is_some_and(|at| at.0 > now.0.saturating_add(Deadline::MS_MAX)) {
            return Err(invalid(format!("{field}: the time must be within ten years")));
        }
        Ok(())
    }
}

/// The deadline that a description asks for, for a sandbox created at this time.
pub(super) fn of(object: &Value, created_at: Wall) -> Result<Option<Asked>, BlaxelError> {
    let mut found = Found { created_at, at: None, idle_ms: None };
    let runtime = &object["spec"]["runtime"];
    if let Some(text) = text_of(&runtime["ttl"], "spec.runtime.ttl")? {
        found.max_age("spec.runtime.ttl", text)?;
    }
    if let Some(text) = text_of(&runtime["expires"], "spec.runtime.expires")? {
        found.date("spec.runtime.expires", text)?;
    }
    let lifecycle = &object["spec"]["lifecycle"];
    if !lifecycle.is_null() && !lifecycle.is_object() {
        return Err(invalid("spec.lifecycle: an object is expected".to_owned()));
    }
    match &lifecycle["expirationPolicies"] {
        Value::Null => {}
        Value::Array(policies) => {
            for policy in policies {
                found.policy(policy)?;
            }
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            return Err(invalid(format!("{POLICIES}: a list is expected")));
        }
    }
    let (at, field) = found.at.map_or((None, ""), |(at, field)| (Some(at), field));
    let idle_ms = found.idle_ms;
    let is_set = at.is_some() || idle_ms.is_some();
    let deadline = Deadline { at, idle_ms, action: DeadlineAction::End };
    Ok(is_set.then_some(Asked { deadline, field }))
}

const POLICIES: &str = "spec.lifecycle.expirationPolicies";

/// What the fields seen so far ask for.
struct Found {
    created_at: Wall,
    at: Option<(Wall, &'static str)>,
    idle_ms: Option<u64>,
}

impl Found {
    fn policy(&mut self, policy: &Value) -> Result<(), BlaxelError> {
        if !policy["action"].is_null() && policy["action"] != "delete" {
            let cause =
                format!("{POLICIES}: action {} is not known: use \"delete\"", policy["action"]);
            return Err(invalid(cause));
        }
        let Some(value) = policy["value"].as_str() else {
            return Err(invalid(format!("{POLICIES}: value: a text is expected")));
        };
        match policy["type"].as_str() {
            Some("ttl-idle") => {
                let ms = duration_ms(POLICIES, value)?;
                self.idle_ms = Some(self.idle_ms.map_or(ms, |before| before.min(ms)));
                Ok(())
            }
            Some("ttl-max-age") => self.max_age(POLICIES, value),
            Some("date") => self.date(POLICIES, value),
            Some(_) | None => {
                let cause = format!(
                    "{POLICIES}: type {} is not known: use \"ttl-idle\", \"ttl-max-age\" or \"date\"",
                    policy["type"]
                );
                Err(invalid(cause))
            }
        }
    }

    fn max_age(&mut self, field: &'static str, text: &str) -> Result<(), BlaxelError> {
        let ms = duration_ms(field, text)?;
        self.no_later_than(Wall(self.created_at.0.saturating_add(ms)), field);
        Ok(())
    }

    fn date(&mut self, field: &'static str, text: &str) -> Result<(), BlaxelError> {
        let at = wire::Time::from_text_in_utc(text).ok_or_else(|| {
            invalid(format!("{field}: {text:?} is not a date like 2026-12-31T23:59:59Z"))
        })?;
        self.no_later_than(Wall(u64::try_from(at.0).unwrap_or(0)), field);
        Ok(())
    }

    fn no_later_than(&mut self, at: Wall, field: &'static str) {
        if self.at.is_none_or(|(before, _)| at < before) {
            self.at = Some((at, field));
        }
    }
}

/// A field that is a text or is not given.
fn text_of<'a>(value: &'a Value, field: &str) -> Result<Option<&'a str>, BlaxelError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(invalid(format!("{field}: a text is expected")))
        }
    }
}

/// A number with a unit: `60s`, `30m`, `24h`, `7d`, `2w`.
fn duration_ms(field: &str, text: &str) -> Result<u64, BlaxelError> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit_ms = match unit {
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        "w" => Some(7 * 86_400_000),
        _ => None,
    };
    let ms = number.parse::<u64>().ok().zip(unit_ms).and_then(|(n, ms)| n.checked_mul(ms));
    ms.filter(|ms| (1..=Deadline::MS_MAX).contains(ms)).ok_or_else(|| {
        invalid(format!(
            "{field}: {text:?} is not a time like 60s, 30m, 24h or 7d, at most ten years"
        ))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MADE: Wall = Wall(1_000_000);

    fn policies(policies: &Value) -> Value {
        json!({"spec": {"lifecycle": {"expirationPolicies": policies}}})
    }

    #[test]
    fn the_first_of_all_policies_counts() {
        let deadline = |object: Value| of(&object, MADE).unwrap().map(|asked| asked.deadline);
        assert_eq!(deadline(json!({})), None);
        assert_eq!(deadline(json!({"spec": {"runtime": {"ttl": "", "expires": null}}})), None);
        let ttl = deadline(json!({"spec": {"runtime": {"ttl": "5m"}}})).unwrap();
        assert_eq!((ttl.at, ttl.idle_ms), (Some(Wall(1_300_000)), None));
        let all = deadline(json!({"spec": {
            "runtime": {"ttl": "24h", "expires": "1970-01-01T02:00:00Z"},
            "lifecycle": {"expirationPolicies": [
                {"type": "ttl-idle", "value": "30m", "action": "delete"},
                {"type": "ttl-idle", "value": "60s", "action": "delete"},
                {"type": "ttl-max-age", "value": "1h"},
                {"type": "date", "value": "1970-01-01T00:30:00.5"},
            ]},
        }}));
        let all = all.unwrap();
        assert_eq!((all.at, all.idle_ms), (Some(Wall(1_800_500)), Some(60_000)));
        assert_eq!(all.action, DeadlineAction::End);
    }

    #[test]
    fn a_time_that_cannot_be_set_is_refused_with_the_field_that_gave_it() {
        let runtime = |ttl: &str, expires: &str| {
            let runtime = json!({"ttl": ttl, "expires": expires});
            json!({"spec": {"runtime": runtime}})
        };
        let date = json!([{"type": "date", "value": "1970-01-01T00:10:00Z"}]);
        for (object, field) in [
            (runtime("5m", "1970-01-01T00:00:10Z"), "spec.runtime.expires: the time has passed"),
            (runtime("5m", "2970-01-01T00:00:00Z"), "spec.runtime.ttl: the time has passed"),
            (runtime("", "2970-01-01T00:00:00Z"), "spec.runtime.expires: the time must be within"),
            (policies(&date), "spec.lifecycle.expirationPolicies: the time has passed"),
        ] {
            let asked = of(&object, MADE).unwrap().unwrap();
            let refused = asked.refuse_wrong_time(Wall(MADE.0 + 300_000)).unwrap_err();
            assert_eq!(refused.status, 400);
            assert!(refused.text.starts_with(field), "{}: {object}", refused.text);
        }
        let soon = of(&runtime("5m", ""), MADE).unwrap().unwrap();
        soon.refuse_wrong_time(Wall(MADE.0 + 299_999)).unwrap();
    }

    #[test]
    fn policies_that_cannot_be_understood_are_refused() {
        for bad in [
            json!({"spec": {"runtime": {"ttl": "soon"}}}),
            json!({"spec": {"runtime": {"ttl": 300}}}),
            json!({"spec": {"runtime": {"ttl": "0s"}}}),
            json!({"spec": {"runtime": {"ttl": "99999999999d"}}}),
            json!({"spec": {"runtime": {"expires": "tomorrow"}}}),
            json!({"spec": {"lifecycle": "short"}}),
            policies(&json!({})),
            policies(&json!([{"type": "ttl-idle", "value": "1h", "action": "stop"}])),
            policies(&json!([{"type": "ttl-hope", "value": "1h"}])),
            policies(&json!([{"type": "date", "value": "1h"}])),
            policies(&json!([{"type": "ttl-idle"}])),
        ] {
            assert_eq!(of(&bad, MADE).unwrap_err().status, 400, "{bad}");
        }
    }
}
