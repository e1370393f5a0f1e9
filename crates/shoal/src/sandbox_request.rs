//! The flags with which commands ask for a sandbox: template, environment, labels, times. They are
//! the same in every command.

use std::time::Duration;

use model::TemplateName;
use wire::CheckoutRequest;

use crate::duration;
use crate::failure::Failure;
use crate::network_request::NetworkRequest;

/// The template that every server has unless it is configured otherwise.
pub(crate) const DEFAULT_TEMPLATE: &str = "default";

/// Flags that describe the sandbox.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SandboxRequest {
    /// Template of the sandbox [default: default]
    #[arg(long, short = 'T', value_name = "NAME", value_parser = TemplateName::new)]
    pub(crate) template: Option<TemplateName>,
    /// Label of the sandbox, for `shoal ps --label`
    #[arg(long = "label", short = 'l', value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// How long the sandbox is yours, like 10m [default: as the template says]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// How long to wait for a free sandbox, like 5s [default: as the server says]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    wait: Option<Duration>,
    #[command(flatten)]
    network: NetworkRequest,
}

impl SandboxRequest {
    /// The first flag that only a new sandbox can follow, if one was given.
    pub(crate) fn flag_of_a_new_one(&self) -> Option<&'static str> {
        let Self { template, labels, ttl, wait, network } = self;
        [
            (template.is_some(), "--template"),
            (!labels.is_empty(), "--label"),
            (ttl.is_some(), "--ttl"),
            (wait.is_some(), "--wait"),
        ]
        .into_iter()
        .find_map(|(given, flag)| given.then_some(flag))
        .or_else(|| network.flag())
    }

    /// The request to the server.
    pub(crate) fn request(&self, env: Vec<(String, String)>) -> Result<CheckoutRequest, Failure> {
        let default = || {
            TemplateName::new(DEFAULT_TEMPLATE)
                .map_err(|e| Failure::new("cannot name a template", e))
        };
        let template = self.template.clone().map_or_else(default, Ok)?;
        Ok(CheckoutRequest {
            env: env.into_iter().collect(),
            labels: self.labels.iter().cloned().collect(),
            // Rounded up, so that no sandbox ends sooner than the user wanted.
            ttl_s: self.ttl.map(|time| time.as_millis().div_ceil(1000) as u64),
            wait_ms: self.wait.map(|time| time.as_millis() as u64),
            network: self.network.network(),
            secrets: self.network.secrets(),
            ..CheckoutRequest::of(template)
        })
    }
}

/// Parses `KEY=VALUE`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("a pair like KEY=VALUE".to_owned()),
    }
}

/// Parses entries of an environment. `KEY` alone takes the value from our environment, if set.
pub(crate) fn environment(
    typed: &[String],
    inherited: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, Failure> {
    let mut env = Vec::new();
    for entry in typed {
        let (key, value) = match entry.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (entry.as_str(), inherited(entry)),
        };
        if key.is_empty() || entry.contains('\0') {
            return Err(Failure::new(
                format!("cannot set {entry:?}"),
                "an entry looks like KEY=VALUE",
            ));
        }
        env.extend(value.map(|value| (key.to_owned(), value)));
    }
    Ok(env)
}
