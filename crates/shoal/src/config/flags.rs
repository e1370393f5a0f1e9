//! Flags that change the configuration of one start. They override everything else.

use std::path::{Path, PathBuf};

/// The flags.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct Overrides {
    /// Configuration file [default: the first that exists of `$SHOAL_CONFIG`,
    /// `DATA_DIR/shoal.toml`, `/etc/shoal/shoal.toml`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on [default: 127.0.0.1:7600]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Data directory [default: /var/lib/shoal for root]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Threads that serve requests [default: half of the cores]
    #[arg(long, value_name = "N")]
    workers: Option<String>,
    /// Where the server stores its journal: sqlite or memory
    #[arg(long, value_name = "KIND")]
    store: Option<String>,
    /// Format of log lines: text for people, json for programs
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Least important level that is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Also serve clients of Ash, on this address [default: 127.0.0.1:4100], and read the
    /// environment variables of Ash
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "")]
    ash: Option<String>,
    /// Also serve one sandbox of this template to clients of Blaxel, on an address of its own
    #[arg(long, value_name = "TEMPLATE")]
    blaxel: Option<String>,
    /// Address for the sandbox of --blaxel [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    blaxel_listen: Option<String>,
    /// Require no key on the address of --blaxel-listen, which must be a loopback address; requests
    /// of web pages are refused
    #[arg(long)]
    blaxel_keyless: bool,
    /// Start only the pools of these templates; names are separated by commas [default: all]
    #[arg(long, value_name = "NAMES")]
    templates: Option<String>,
    /// Set any key of the configuration, like `node.max_live=100`
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a key and its value, like node.max_live=100")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

impl Overrides {
    /// Only `--data-dir`.
    pub(crate) fn of_data_dir(data_dir: Option<&Path>) -> Self {
        let data_dir = data_dir.map(|path| path.to_string_lossy().into_owned());
        Self { data_dir, ..Self::default() }
    }

    /// The same, with a configuration file.
    #[must_use]
    pub(crate) fn with_file(self, config: Option<&Path>) -> Self {
        Self { config: config.map(Path::to_path_buf), ..self }
    }

    /// Whether `--ash` was given.
    pub(super) const fn speaks_ash(&self) -> bool {
        self.ash.is_some()
    }

    /// Whether `--blaxel` was given.
    pub(super) const fn speaks_blaxel(&self) -> bool {
        self.blaxel.is_some()
    }

    /// The configuration file, if one was given.
    pub(super) fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Key, value and flag of each, the strongest last.
    pub(super) fn typed(&self) -> Vec<(String, String, String)> {
        let any = self
            .set
            .iter()
            .map(|(key, value)| (key.clone(), value.clone(), format!("--set {key}")));
        // `--ash` without an address only turns it on.
        let ash = self.ash.clone().filter(|address| !address.is_empty());
        let keyless = self.blaxel_keyless.then(|| "true".to_owned());
        let named = [
            ("server.listen", &self.listen, "--listen"),
            ("server.data_dir", &self.data_dir, "--data-dir"),
            ("server.workers", &self.workers, "--workers"),
            ("node.templates", &self.templates, "--templates"),
            ("store.kind", &self.store, "--store"),
            ("log.format", &self.log_format, "--log-format"),
            ("log.level", &self.log_level, "--log-level"),
            ("ash.listen", &ash, "--ash"),
            ("blaxel.template", &self.blaxel, "--blaxel"),
            ("blaxel.listen", &self.blaxel_listen, "--blaxel-listen"),
            ("blaxel.keyless", &keyless, "--blaxel-keyless"),
        ];
        let named = named.into_iter().filter_map(|(key, value, flag)| {
            Some((key.to_owned(), value.clone()?, flag.to_owned()))
        });
        any.chain(named).collect()
    }
}
