//! How commands find their server: the one that a flag or the environment names, or the one of this
//! machine, with the key in its data directory.

use std::path::PathBuf;

use client::{Client, Discovery, Patience};

use crate::config::{self, ConfigError, HostContext, Overrides};
use crate::failure::Failure;
use crate::native;

/// Flags that choose the server.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Server {
    /// Address of the server [default: `$SHOAL_URL`, or the server of this machine]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Data directory of the server of this machine, where its key is
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl Server {
    /// Whether a flag or the environment names a server. `--data-dir` without `--server` means this
    /// machine, whatever the environment says.
    pub(crate) fn is_named(&self) -> bool {
        let in_environment = || Discovery::from_environment().address.is_some();
        self.server.is_some() || (self.data_dir.is_none() && in_environment())
    }

    /// The data directory of the server of this machine.
    pub(crate) fn data_dir(&self) -> Result<PathBuf, Failure> {
        let overrides = Overrides::of_data_dir(self.data_dir.as_deref());
        let effective = config::load(&overrides, &HostContext::read());
        Ok(effective.map_err(ConfigError::failure)?.config.server.data_dir)
    }

    /// A client of the server. It sends nothing yet.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let mut discovery = Discovery::from_environment();
        if self.server.is_some() {
            discovery.address.clone_from(&self.server);
        }
        // With address and key given, the configuration need not even be valid.
        if discovery.address.is_none() || discovery.key.is_none() {
            let overrides = Overrides::of_data_dir(self.data_dir.as_deref());
            let effective = config::load(&overrides, &HostContext::read());
            let config = effective.map_err(ConfigError::failure)?.config;
            let mut listen = config.server.listen;
            if listen.ip().is_unspecified() {
                listen.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            discovery.fallback = Some(listen.to_string());
            discovery.data_dir = Some(config.server.data_dir);
        }
        let client = Client::found(discovery)
            .map_err(|error| Failure::of_client("cannot use this server address or key", &error))?;
        // A person waits at the terminal: report a missing server at once.
        Ok(client.patient(Patience { retries: 0, ..Patience::default() }))
    }

    /// Runs `talk` with a client of the server.
    pub(crate) fn with<T>(
        &self,
        talk: impl AsyncFnOnce(Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let client = self.client()?;
        let tokio = native::tokio_of_one_thread()?;
        let outcome = native::block_on(&tokio, talk(client));
        // A thread that reads our input may still wait for some.
        tokio.shutdown_background();
        outcome
    }
}

/// Turns an error of the client into a failure: "cannot {what}".
pub(crate) fn cannot(what: &str) -> impl Fn(client::ClientError) -> Failure {
    move |error| Failure::of_client(format!("cannot {what}"), &error)
}
