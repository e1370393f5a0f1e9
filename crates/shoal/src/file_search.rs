//! `shoal find`, `shoal grep` and `shoal watch`: searching and watching the files of a sandbox.

use std::process::ExitCode;

use client::FileFilter;
use model::SandboxId;
use wire::FileEvent;

use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::plain_text::plain;
use crate::server::{Server, cannot};

const WORKSPACE: &str = "/workspace";

/// Flags that select files, for `find` and `grep`.
#[derive(Debug, clap::Args)]
pub(crate) struct FileSelection {
    /// Only files whose name matches; may be given more than once
    #[arg(long, short = 'n', value_name = "PATTERN")]
    name: Vec<String>,
    /// Do not search directories of this name; may be given more than once
    #[arg(long, short = 'x', value_name = "NAME")]
    exclude: Vec<String>,
    /// Skip names that begin with a dot
    #[arg(long)]
    no_hidden: bool,
    /// Print at most this many results [default: 1000]
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl FileSelection {
    fn filter(&self) -> FileFilter {
        FileFilter {
            names: self.name.clone(),
            exclude: self.exclude.clone(),
            exclude_hidden: self.no_hidden,
            limit: self.limit,
            ..FileFilter::default()
        }
    }
}

/// Arguments of `shoal find`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal find SANDBOX                               everything in the workspace\n  \
    shoal find SANDBOX src -n '*.rs' -x target\n  \
    shoal find SANDBOX / --kind directory --depth 2\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Find {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Directory to search in
    #[arg(value_name = "PATH", default_value = WORKSPACE)]
    path: String,
    /// Only this kind: file, directory, link, other; may be given more than once
    #[arg(long, value_name = "KIND")]
    kind: Vec<String>,
    /// How many levels deep to search; 1 is the directory itself
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    #[command(flatten)]
    files: FileSelection,
}

/// Arguments of `shoal grep`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal grep SANDBOX 'fn main'             in all files of its workspace\n  \
    shoal grep SANDBOX -i error src -n '*.rs'\n\n\
    The text is searched for literally; there are no patterns.\n\n\
    Exit codes: 0 if it was found; 1 if not, or if the server refused; 3 if no server answers.")]
pub(crate) struct Grep {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Text to search for
    #[arg(value_name = "TEXT")]
    text: String,
    /// Where to search: a directory or a file
    #[arg(value_name = "PATH", default_value = WORKSPACE)]
    path: String,
    /// Ignore the difference between upper and lower case
    #[arg(long, short = 'i')]
    ignore_case: bool,
    #[command(flatten)]
    files: FileSelection,
}

/// Arguments of `shoal watch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal watch SANDBOX              what changes in its workspace\n  \
    shoal watch SANDBOX src -r       also in every directory beneath\n  \
    shoal watch SANDBOX --json       one object a line\n\n\
    The command runs until you interrupt it, or until the directory is removed.\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Watch {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// The directory
    #[arg(value_name = "PATH", default_value = WORKSPACE)]
    path: String,
    /// Also watch every directory beneath
    #[arg(long, short = 'r')]
    recursive: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn find(arguments: &Find, output: &Output) -> Result<ExitCode, Failure> {
    let filter = FileFilter {
        kinds: arguments.kind.clone(),
        depth: arguments.depth,
        ..arguments.files.filter()
    };
    let found = arguments.files.server.with(async |client| {
        client
            .sandbox(arguments.sandbox)
            .find(&arguments.path, &filter)
            .await
            .map_err(cannot("find files"))
    })?;
    if arguments.files.json {
        output.say_value(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    for file in &found.files {
        output.say(&plain(&file.path));
    }
    if found.truncated {
        output.note("there are more results; raise --limit to see them");
    }
    if found.unreadable > 0 {
        output.note(&format!("{} directories could not be read", found.unreadable));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn grep(arguments: &Grep, output: &Output) -> Result<ExitCode, Failure> {
    let filter = arguments.files.filter();
    let hits = arguments.files.server.with(async |client| {
        let sandbox = client.sandbox(arguments.sandbox);
        let hits =
            sandbox.search(&arguments.path, &arguments.text, arguments.ignore_case, &filter).await;
        hits.map_err(cannot("search the files"))
    })?;
    if arguments.files.json {
        output.say_value(&hits)?;
    } else {
        for hit in &hits.matches {
            let place = output.paint(Paint::Strong, &format!("{}:{}", plain(&hit.path), hit.line));
            output.say(&format!("{place}:{}", plain(&hit.text.replace('\t', " "))));
        }
        if hits.truncated {
            output.note("there are more results; raise --limit to see them");
        }
    }
    Ok(if hits.matches.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub(crate) fn watch(arguments: &Watch, output: &Output) -> Result<ExitCode, Failure> {
    arguments.server.with(async |client| {
        let (sandbox, failed) = (client.sandbox(arguments.sandbox), cannot("watch the directory"));
        let mut changes =
            sandbox.watch(&arguments.path, arguments.recursive).await.map_err(&failed)?;
        output.remark("watching");
        while let Some(event) = changes.next().await.map_err(&failed)? {
            print_change(&event, arguments.json, output)?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print_change(event: &FileEvent, json: bool, output: &Output) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(event)
            .map_err(|error| Failure::new("cannot write a change", error))?;
        output.say(&text);
        return Ok(());
    }
    match event {
        FileEvent::Created(file)
        | FileEvent::Written(file)
        | FileEvent::Removed(file)
        | FileEvent::Renamed(file)
        | FileEvent::About(file) => {
            let slash = if file.directory { "/" } else { "" };
            output.say(&format!("{:8} {}{slash}", event.name(), plain(&file.path)));
        }
        FileEvent::Lost => output.note("changes came too fast: some are missing"),
        FileEvent::Gone => output.note("the directory was removed"),
        FileEvent::Armed | FileEvent::Error { .. } => {}
    }
    Ok(())
}
