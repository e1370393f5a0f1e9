//! The flags with which commands narrow what a sandbox may reach and name the secrets that it uses.
//! They are the same in every command.

use model::{Boundary, HostName, NetworkPolicy, NetworkRule, SecretName, SecretUse};

/// Flags about the network and secrets of a sandbox.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct NetworkRequest {
    /// Allow only this, within the policy of the template: HOST, *.DOMAIN, CIDR, with :PORT; may be
    /// repeated
    #[arg(long = "allow", value_name = "RULE", value_parser = rule)]
    allow: Vec<NetworkRule>,
    /// Allow nothing, whatever the template allows
    #[arg(long, conflicts_with = "allow")]
    no_network: bool,
    /// Use a secret: NAME (a variable of that name), VARIABLE=NAME, or VARIABLE=NAME@HOST, which
    /// puts it into requests to HOST and shows the sandbox a placeholder only
    #[arg(long = "secret", value_name = "[VARIABLE=]NAME[@HOST]", value_parser = secret)]
    secrets: Vec<SecretUse>,
}

impl NetworkRequest {
    pub(crate) fn network(&self) -> Option<NetworkPolicy> {
        if self.no_network {
            return Some(NetworkPolicy::None);
        }
        (!self.allow.is_empty()).then(|| NetworkPolicy::Allow(self.allow.clone()))
    }

    /// The first of these flags that was given.
    pub(crate) fn flag(&self) -> Option<&'static str> {
        let Self { allow, no_network, secrets } = self;
        [
            (!allow.is_empty(), "--allow"),
            (*no_network, "--no-network"),
            (!secrets.is_empty(), "--secret"),
        ]
        .into_iter()
        .find_map(|(given, flag)| given.then_some(flag))
    }

    pub(crate) fn secrets(&self) -> Vec<SecretUse> {
        self.secrets.clone()
    }
}

/// Parses a rule.
pub(crate) fn rule(text: &str) -> Result<NetworkRule, String> {
    text.parse().map_err(|error: model::network::InvalidRule| error.problem.to_owned())
}

fn secret(text: &str) -> Result<SecretUse, String> {
    let (variable, rest) = match text.split_once('=') {
        Some((variable, rest)) => (Some(variable), rest),
        None => (None, text),
    };
    let (name, host) = match rest.split_once('@') {
        Some((name, host)) => (name, Some(host)),
        None => (rest, None),
    };
    let name = SecretName::new(name)?;
    let boundary = match host {
        Some(host) => {
            let host = HostName::parse(host).map_err(|error| error.problem.to_owned())?;
            Some(Boundary { hosts: vec![host], header: "authorization".to_owned() })
        }
        None => None,
    };
    let env = Some(variable.unwrap_or(name.as_str()).to_owned());
    let used = SecretUse { secret: name, env, file: None, boundary };
    match used.problem() {
        Some(problem) => Err(problem.to_owned()),
        None => Ok(used),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_named_with_a_variable_and_a_host() {
        let used = secret("OPENAI_API_KEY=openai@api.openai.com").unwrap();
        assert_eq!(used.env.as_deref(), Some("OPENAI_API_KEY"));
        assert_eq!(used.secret.as_str(), "openai");
        assert_eq!(used.boundary.unwrap().hosts[0].as_str(), "api.openai.com");
        let plain = secret("TOKEN").unwrap();
        assert_eq!((plain.env.as_deref(), plain.boundary), (Some("TOKEN"), None));
        for text in ["", "=x", "A=", "A=b/c", "1A=b", "A=b@", "A=b@10.0.0.1", "my-secret"] {
            assert!(secret(text).is_err(), "{text}");
        }
    }
}
