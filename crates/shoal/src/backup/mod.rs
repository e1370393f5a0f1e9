//! `shoal backup`: copies everything that a server needs to continue elsewhere to one file or to a
//! directory. A running server sends its data; otherwise the command reads the data directory and
//! locks it meanwhile. It reads the keys of the node from their files in both cases: they never
//! cross the network.

pub(crate) mod manifest;
mod stream;
mod writer;

pub(crate) use self::writer::{HashingReader, hex};

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use self::manifest::{KEY_FILES, Manifest, NODE_KEY};
use self::stream::BackupSummary;
use self::writer::BackupWriter;
use crate::config::{self, ConfigError, HostContext, Overrides};
use crate::data_dir_lock;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments of `shoal backup`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sudo shoal backup /backups/shoal-monday.tar.zst      one file, compressed\n  \
    sudo shoal backup /backups/monday                    a directory, which must not exist yet\n  \
    sudo shoal backup - | ssh elsewhere 'cat > shoal.tar.zst'\n  \
    sudo shoal backup --without-node-key b.tar.zst       keep node.key somewhere else\n\n\
    The server may run or be stopped. A backup has the database, the files of all sessions, the seed\n\
    archives of agents, and the keys. It does not have images, the configuration, and output of\n\
    processes that is not in the database. A workspace in memory is backed up as it was last saved.\n\
    `shoal restore` brings a backup back.")]
pub(crate) struct Arguments {
    /// A file that ends with .tar.zst, - for standard output, or a new directory
    #[arg(value_name = "FILE|DIR")]
    to: PathBuf,
    /// Leave out the key of the node; without it no server can start on the backup
    #[arg(long)]
    without_node_key: bool,
    /// Data directory to back up
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let overrides = Overrides::of_data_dir(arguments.data_dir.as_deref());
    let effective = config::load(&overrides, &HostContext::read());
    let data_dir = effective.map_err(ConfigError::failure)?.config.server.data_dir;
    if !data_dir.join(store::sqlite::FILE).is_file() {
        let cause = format!("{} has no {}", data_dir.display(), store::sqlite::FILE);
        return Err(Failure::new("there is nothing to back up", cause)
            .remedy("name the data directory with --data-dir")
            .usage());
    }
    let mut writer = BackupWriter::open(&arguments.to)?;
    let made = make(arguments, &data_dir, &mut writer, output);
    output.progress("");
    let (manifest, summary) = made?;
    let bytes = writer.finish(&manifest)?;
    print_summary(arguments, output, &manifest, &summary, bytes);
    Ok(ExitCode::SUCCESS)
}

fn make(
    arguments: &Arguments,
    data_dir: &Path,
    writer: &mut BackupWriter,
    output: &Output,
) -> Result<(Manifest, BackupSummary), Failure> {
    let summary = if data_dir_lock::is_served(data_dir)? {
        stream::from_server(data_dir, writer, output)?
    } else {
        stream::from_directory(data_dir, writer, output)?
    };
    for name in KEY_FILES {
        if *name != NODE_KEY || !arguments.without_node_key {
            writer.put_file(name, &data_dir.join(name))?;
        }
    }
    let node_key = writer.has(NODE_KEY);
    if !node_key && !arguments.without_node_key {
        return Err(Failure::new("cannot read node.key", "the file is not in the data directory")
            .remedy("put it back, or leave it out on purpose with --without-node-key"));
    }
    Ok((writer.manifest(node_key, summary.sessions), summary))
}

fn print_summary(
    arguments: &Arguments,
    output: &Output,
    manifest: &Manifest,
    summary: &BackupSummary,
    bytes: Option<u64>,
) {
    if arguments.json && arguments.to != Path::new("-") {
        output.say_json(&json!({
            "path": arguments.to.display().to_string(),
            "bytes": bytes,
            "files": manifest.files.len(),
            "sessions": manifest.sessions,
            "without_files": summary.without_files,
            "node_key": manifest.node_key,
        }));
        return;
    }
    output.note(&format!(
        "backed up {} sessions in {} files to {}",
        manifest.sessions,
        manifest.files.len(),
        arguments.to.display()
    ));
    if !summary.without_files.is_empty() {
        output.complain(&format!(
            "{} sessions have no files in the data directory, so the backup has none of them: {}",
            summary.without_files.len(),
            summary.without_files.join(", ")
        ));
    }
    output.note(if manifest.node_key {
        "the backup includes the key of the node (node.key) and admin.key: with it one can read \
         every secret and log in; keep it safe"
    } else {
        "the backup does not include the key of the node: keep DATA_DIR/node.key somewhere else; \
         without it no server can start on the backup"
    });
}
