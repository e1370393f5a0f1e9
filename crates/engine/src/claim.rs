//! Settings that a caller binds to a sandbox, checked before anything is reserved for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::secret::{SECRET_BYTES_MAX, SECRET_USES_MAX};
use model::{ClaimSettings, ErrorCode, Refusal, SecretName};

use crate::{CheckoutRequest, SessionRequest};

const VARIABLES_MAX: usize = 1_000;
const ENVIRONMENT_BYTES_MAX: usize = 128 * 1024;
const CONFIG_BYTES_MAX: usize = 1024 * 1024;
const LABELS_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 256;

/// The settings of a lease; none if there is nothing to bind.
pub(crate) fn settings(asked: &CheckoutRequest) -> Result<Option<Arc<ClaimSettings>>, Refusal> {
    check_env(&asked.env)?;
    check_labels(&asked.labels)?;
    check_secret_values(&asked.secret_values)?;
    let settings = ClaimSettings {
        env: asked.env.clone(),
        labels: asked.labels.clone(),
        network: asked.network.clone(),
        secrets: asked.secrets.clone(),
        secret_values: asked.secret_values.clone(),
        ..ClaimSettings::default()
    };
    Ok((!settings.is_empty()).then(|| Arc::new(settings)))
}

/// The same for a session, which has more settings.
pub(crate) fn session_settings(
    asked: &SessionRequest,
) -> Result<Option<Arc<ClaimSettings>>, Refusal> {
    check_env(&asked.env)?;
    check_settings(Some(&asked.metadata), asked.config.as_ref())?;
    check_secret_values(&asked.secret_values)?;
    let settings = ClaimSettings {
        env: asked.env.clone(),
        labels: asked.metadata.clone(),
        config: asked.config.clone(),
        seed: asked.seed,
        network: asked.network.clone(),
        secrets: asked.secrets.clone(),
        secret_values: asked.secret_values.clone(),
    };
    Ok((!settings.is_empty()).then(|| Arc::new(settings)))
}

fn check_secret_values(values: &BTreeMap<SecretName, String>) -> Result<(), Refusal> {
    for (name, value) in values {
        if value.is_empty() || value.len() > SECRET_BYTES_MAX || value.contains('\0') {
            return Err(invalid(format!(
                "secret_values: the value of \"{name}\" is empty, has more than \
                 {SECRET_BYTES_MAX} bytes, or a zero byte in it"
            )));
        }
    }
    if values.len() > SECRET_USES_MAX {
        return Err(invalid(format!("secret_values: at most {SECRET_USES_MAX} values")));
    }
    Ok(())
}

/// Checks the changeable settings of a session.
pub(crate) fn check_settings(
    labels: Option<&BTreeMap<String, String>>,
    config: Option<&Arc<str>>,
) -> Result<(), Refusal> {
    if let Some(labels) = labels {
        check_labels(labels)
            .map_err(|refusal| invalid(refusal.cause.replacen("labels", "metadata", 1)))?;
    }
    if config.is_some_and(|config| config.len() > CONFIG_BYTES_MAX) {
        return Err(invalid(format!("config: at most {CONFIG_BYTES_MAX} bytes")));
    }
    Ok(())
}

pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let mut bytes = 0;
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(invalid(
                "env: a name is empty, or has a = or a zero byte in it".to_owned(),
            ));
        }
        if value.contains('\0') {
            return Err(invalid(format!("env: the value of {name:?} has a zero byte in it")));
        }
        bytes += name.len() + value.len() + 2;
    }
    if env.len() > VARIABLES_MAX || bytes > ENVIRONMENT_BYTES_MAX {
        let cause =
            format!("env: at most {VARIABLES_MAX} variables and {ENVIRONMENT_BYTES_MAX} bytes");
        return Err(invalid(cause));
    }
    Ok(())
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let too_long = |text: &String| text.len() > LABEL_BYTES_MAX || text.contains('\0');
    let wrong = |(name, value): (&String, &String)| {
        name.is_empty() || too_long(name) || too_long(value) || name.contains('=')
    };
    if labels.len() > LABELS_MAX || labels.iter().any(wrong) {
        let cause = format!(
            "labels: at most {LABELS_MAX}, names and values of at most {LABEL_BYTES_MAX} bytes, \
             no = in a name"
        );
        return Err(invalid(cause));
    }
    Ok(())
}

fn invalid(cause: String) -> Refusal {
    Refusal::new(ErrorCode::InvalidArgument, cause)
}

#[cfg(test)]
mod tests {
    use model::TemplateName;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn claim_without_settings_is_none_and_an_invalid_one_names_the_field() {
        let template = TemplateName::new("t").unwrap();
        let settings = |env, labels| {
            settings(&CheckoutRequest { env, labels, ..CheckoutRequest::of(template.clone()) })
        };
        assert_eq!(settings(map(&[]), map(&[])).unwrap(), None);
        let bound = settings(map(&[("A", "1=2")]), map(&[("team", "x")])).unwrap().unwrap();
        assert_eq!(bound.env, map(&[("A", "1=2")]));
        let long = "x".repeat(ENVIRONMENT_BYTES_MAX);
        for (env, labels, named) in [
            (map(&[("", "1")]), map(&[]), "env"),
            (map(&[("A=B", "1")]), map(&[]), "env"),
            (map(&[("A", "\0")]), map(&[]), "env"),
            (map(&[("A", &long)]), map(&[]), "env"),
            (map(&[]), map(&[("", "1")]), "labels"),
            (map(&[]), map(&[("a", &long)]), "labels"),
            (map(&[]), map(&[("a=b", "c")]), "labels"),
        ] {
            let refusal = settings(env, labels).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::InvalidArgument);
            assert!(refusal.cause.starts_with(named), "{refusal}");
        }
    }
}
