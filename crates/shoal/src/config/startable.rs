//! Whether a server would start with a configuration, as far as this machine and the configuration
//! decide it: `shoal serve`, `shoal config` and `shoal config --check` refuse the same. What only
//! the data directory, the runtimes or the network know, a start finds out. Changes nothing.

use std::net::SocketAddr;
use std::path::PathBuf;

use engine::{Mounts, check_settings_of_template};
use model::template::RuntimeKind;
use model::{Template, TemplateName};
use runtime::oci::Program;

use super::settings::{Config, Enabled, InvalidValue, StoreKind};

impl Config {
    /// Refuses what a start would refuse.
    pub(super) fn refuse_unstartable(&self) -> Result<(), InvalidValue> {
        self.refuse_address_twice()?;
        let mounts = self.mounts()?;
        if self.egress.enabled
            && let Err(problem) = self.egress.upstream_ca_pem()
        {
            return Err(InvalidValue::new("egress.upstream_ca", problem));
        }
        for (at, template) in self.given_templates().iter().enumerate() {
            let refused = |field: &str, problem| {
                let dot = if field.is_empty() { "" } else { "." };
                InvalidValue::new(format!("templates.{at}{dot}{field}"), problem)
            };
            if let Some(problem) = self.why_no_runtime(template.runtime) {
                return Err(refused("runtime", problem));
            }
            if !template.network.is_none() && !self.egress.enabled {
                let problem = "egress.enabled is false, so sandboxes have loopback only";
                return Err(refused("network", problem.to_owned()));
            }
            if !template.network.is_none() && has_no_network(template.runtime) {
                let kind = template.runtime.as_str();
                let problem = format!(
                    "sandboxes of {kind} have no network that a policy reaches; take another \
                     runtime, or leave `network` out"
                );
                return Err(refused("network", problem));
            }
            let checked = check_settings_of_template(template, &mounts, &self.native.directories);
            checked.map_err(|refusal| refused("", refusal.cause.into_owned()))?;
        }
        self.refuse_template_of_ash()?;
        self.refuse_unknown_templates()
    }

    /// The directories below which templates may mount files, without symbolic links.
    pub(crate) fn mounts(&self) -> Result<Mounts, InvalidValue> {
        let roots = self.mounts.roots.iter().enumerate().map(|(at, root)| {
            let found = root.canonicalize().and_then(|real| {
                let no_directory = std::io::ErrorKind::NotADirectory;
                if real.is_dir() { Ok(real) } else { Err(no_directory.into()) }
            });
            found.map_err(|error| {
                let problem = format!("cannot use {}: {error}", root.display());
                InvalidValue::new(format!("mounts.roots.{at}"), problem)
            })
        });
        let roots: Vec<PathBuf> = roots.collect::<Result<_, _>>()?;
        Ok(Mounts { roots, docker_roots: self.mounts.docker_roots.clone() })
    }

    /// Two listeners cannot have one address.
    fn refuse_address_twice(&self) -> Result<(), InvalidValue> {
        let main = ("server.listen", Some(self.server.listen));
        let listeners =
            [main, ("ash.listen", self.ash.listen), ("blaxel.listen", self.blaxel.listen)];
        for (at, (key, address)) in listeners.iter().enumerate() {
            let Some(address) = address.filter(|address| address.port() != 0) else { continue };
            let taken = |(_, other): &&(&str, Option<SocketAddr>)| *other == Some(address);
            if let Some((other, _)) = listeners[..at].iter().find(taken) {
                return Err(InvalidValue::new(*key, format!("{address} is {other} already")));
            }
        }
        Ok(())
    }

    /// Why the configuration leaves out a runtime, if it does.
    fn why_no_runtime(&self, kind: RuntimeKind) -> Option<String> {
        if kind == RuntimeKind::Docker && self.docker.enabled == Enabled::No {
            return Some("docker.enabled is no".to_owned());
        }
        let program = Program::ALL.into_iter().find(|program| program.kind() == kind)?;
        let named = self.oci.programs.iter().any(|name| name == program.as_str());
        (!named).then(|| format!("oci.programs does not name {}", program.as_str()))
    }

    /// The server makes the template of Ash's sessions from these settings.
    fn refuse_template_of_ash(&self) -> Result<(), InvalidValue> {
        let Some(template) = self.template_of_ash() else { return Ok(()) };
        template.validate().map_err(|wrong| {
            let key = if wrong.field.starts_with("harness") { "bridge_entry" } else { "memory_mb" };
            InvalidValue::new(format!("ash.{key}"), wrong.problem)
        })
    }

    /// Without a stored past, only configured templates exist.
    fn refuse_unknown_templates(&self) -> Result<(), InvalidValue> {
        match self.store.kind {
            StoreKind::Memory => {}
            StoreKind::Sqlite => return Ok(()),
        }
        let built_in = Self::built_in();
        let known: &[Template] = self.templates.as_deref().unwrap_or(&built_in);
        let is_known = |name: &TemplateName| known.iter().any(|template| template.name == *name);
        match self.node.templates.iter().position(|name| !is_known(name)) {
            Some(at) => {
                let problem = format!("there is no template {}", self.node.templates[at]);
                Err(InvalidValue::new(format!("node.templates.{at}"), problem))
            }
            None => Ok(()),
        }
    }
}

/// Whether sandboxes of a runtime have loopback only, on every machine.
fn has_no_network(kind: RuntimeKind) -> bool {
    let program = Program::ALL.into_iter().find(|program| program.kind() == kind);
    program.is_some_and(|program| !program.begins_in_a_network())
}
