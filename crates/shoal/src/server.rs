//! How commands find their server: the one that a flag or the environment names, or the one of this
//! machine, with the key in its data directory. The key of a data directory that the caller names
//! must never go to a server of another data directory.

use std::path::{Path, PathBuf};

use client::{ADDRESS_FILE, Client, Discovery, Patience};

use crate::config::{self, ConfigError, HostContext, Overrides};
use crate::data_dir_lock;
use crate::failure::Failure;
use crate::native;

/// Flags that choose the server.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Server {
    /// Address of the server [default: `$SHOAL_URL`, or the server of this machine]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Data directory of the server of this machine, where its address and key are
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
        if self.server.is_some() || self.data_dir.is_some() {
            discovery.address.clone_from(&self.server);
        }
        // With address and key given, the configuration need not even be valid.
        if discovery.address.is_none() || discovery.key.is_none() {
            let overrides = Overrides::of_data_dir(self.data_dir.as_deref());
            let effective = config::load(&overrides, &HostContext::read());
            let config = effective.map_err(ConfigError::failure)?.config;
            let data_dir = config.server.data_dir;
            if discovery.address.is_none() && self.names_data_dir(discovery.key.is_some()) {
                check_is_served(&data_dir)?;
            } else {
                let mut listen = config.server.listen;
                if listen.ip().is_unspecified() {
                    listen.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
                }
                discovery.fallback = Some(listen.to_string());
            }
            discovery.data_dir = Some(data_dir);
        }
        let client = Client::found(discovery)
            .map_err(|error| Failure::of_client("cannot use this server address or key", &error))?;
        // A person waits at the terminal: report a missing server at once.
        Ok(client.patient(Patience { retries: 0, ..Patience::default() }))
    }

    /// Whether the caller names a data directory. One in the environment matters only if its key is
    /// used: an ordinary user with a key of their own may not be able to look at it.
    fn names_data_dir(&self, has_key: bool) -> bool {
        let set = || std::env::var_os("SHOAL_DATA_DIR").is_some_and(|value| !value.is_empty());
        self.data_dir.is_some() || (!has_key && set())
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

/// Refuses a data directory that no server uses: another server may listen at the default address,
/// or at the address that a killed server left.
fn check_is_served(data_dir: &Path) -> Result<(), Failure> {
    let shown = data_dir.display();
    let what = format!("no server for {shown}");
    if !data_dir_lock::is_served(data_dir)? {
        let remedy = format!(
            "start it with `shoal serve --data-dir {shown}`, or name another server with --server"
        );
        let cause = "no server is running with this data directory";
        return Err(Failure::new(what, cause).remedy(remedy).no_server());
    }
    if !std::fs::read(data_dir.join(ADDRESS_FILE)).is_ok_and(|address| !address.is_empty()) {
        let cause = "the server with this data directory has not written its address yet";
        let remedy = "try again when it is ready, or name its address with --server";
        return Err(Failure::new(what, cause).remedy(remedy).no_server());
    }
    Ok(())
}

/// Turns an error of the client into a failure: "cannot {what}".
pub(crate) fn cannot(what: &str) -> impl Fn(client::ClientError) -> Failure {
    move |error| Failure::of_client(format!("cannot {what}"), &error)
}
