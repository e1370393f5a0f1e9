//! `shoal find`, `shoal grep` and `shoal watch`: looking around among the files of a sandbox.

use std::process::ExitCode;

use client::FileFilter;
use model::SandboxId;
use wire::FileEvent;

use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::server::{Server, cannot};

const WORKSPACE: &str = "/workspace";

/// FileSelection files, typed the same way wherever they are looked for.
#[derive(Debug, clap::Args)]
pub(crate) struct FileSelection {
    /// Only files whose name is like this; may be given more than once
    #[arg(long, short = 'n', value_name = "PATTERN")]
    name: Vec<String>,
    /// Do not look into directories of this name; may be given more than once
    #[arg(long, short = 'x', value_name = "NAME")]
    exclude: Vec<String>,
    /// Pass over what begins with a dot
    #[arg(long)]
    no_hidden: bool,
    /// At most so many [default: 1000]
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

/// What was typed to find files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal find SANDBOX                               everything in its workspace\n  \
    shoal find SANDBOX src -n '*.rs' -x target\n  \
    shoal find SANDBOX / --kind directory --depth 2\n\n\
    Exit codes: 0; 1 if the server refused; 3 if there is no server.")]
pub(crate) struct Find {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Where to look
    #[arg(value_name = "PATH", default_value = WORKSPACE)]
    path: String,
    /// Only this kind: file, directory, link, other; may be given more than once
    #[arg(long, value_name = "KIND")]
    kind: Vec<String>,
    /// How far down; 1 is the directory itself
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    #[command(flatten)]
    files: FileSelection,
}

/// What was typed to look for a text.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal grep SANDBOX 'fn main'             in all files of its workspace\n  \
    shoal grep SANDBOX -i error src -n '*.rs'\n\n\
    The text is looked for as it is; there are no patterns.\n\n\
    Exit codes: 0 if it was found; 1 if not, or if the server refused; 3 if there is no server.")]
pub(crate) struct Grep {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// The text
    #[arg(value_name = "TEXT")]
    text: String,
    /// Where to look: a directory or a file
    #[arg(value_name = "PATH", default_value = WORKSPACE)]
    path: String,
    /// Take `a` and `A` for the same
    #[arg(long, short = 'i')]
    ignore_case: bool,
    #[command(flatten)]
    files: FileSelection,
}

/// What was typed to watch.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal watch SANDBOX              what changes in its workspace\n  \
    shoal watch SANDBOX src -r       and in everything beneath\n  \
    shoal watch SANDBOX --json       one object a line\n\n\
    Runs until it is interrupted, or until the directory is gone.\n\n\
    Exit codes: 0; 1 if the server refused; 3 if there is no server.")]
pub(crate) struct Watch {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// The directory
    #[arg(value_name = "PATH", default_value = WORKSPACE)]
    path: String,
    /// Everything beneath it too
    #[arg(long, short = 'r')]
    recursive: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// A name of a file as one line.
fn shown(path: &str) -> String {
    path.replace(char::is_control, "?")
}

pub(crate) fn find(asked: &Find, output: &Output) -> Result<ExitCode, Failure> {
    let filter =
        FileFilter { kinds: asked.kind.clone(), depth: asked.depth, ..asked.files.filter() };
    let found = asked.files.server.with(async |client| {
        client
            .sandbox(asked.sandbox)
            .find(&asked.path, &filter)
            .await
            .map_err(cannot("look for files"))
    })?;
    if asked.files.json {
        output.say_value(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    for file in &found.files {
        output.say(&shown(&file.path));
    }
    if found.truncated {
        output.note("there are more; --limit shows them");
    }
    if found.unreadable > 0 {
        output.note(&format!("{} directories could not be read", found.unreadable));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn grep(asked: &Grep, output: &Output) -> Result<ExitCode, Failure> {
    let filter = asked.files.filter();
    let hits = asked.files.server.with(async |client| {
        let sandbox = client.sandbox(asked.sandbox);
        let hits = sandbox.search(&asked.path, &asked.text, asked.ignore_case, &filter).await;
        hits.map_err(cannot("look for a text"))
    })?;
    if asked.files.json {
        output.say_value(&hits)?;
    } else {
        for hit in &hits.matches {
            let place = output.paint(Paint::Strong, &format!("{}:{}", shown(&hit.path), hit.line));
            output.say(&format!("{place}:{}", hit.text.replace(char::is_control, " ")));
        }
        if hits.truncated {
            output.note("there are more; --limit shows them");
        }
    }
    Ok(if hits.matches.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub(crate) fn watch(asked: &Watch, output: &Output) -> Result<ExitCode, Failure> {
    asked.server.with(async |client| {
        let (sandbox, failed) = (client.sandbox(asked.sandbox), cannot("watch"));
        let mut changes = sandbox.watch(&asked.path, asked.recursive).await.map_err(&failed)?;
        output.remark("watching");
        while let Some(event) = changes.next().await.map_err(&failed)? {
            tell(&event, asked.json, output)?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn tell(event: &FileEvent, json: bool, output: &Output) -> Result<(), Failure> {
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
            output.say(&format!("{:8} {}{slash}", event.name(), shown(&file.path)));
        }
        FileEvent::Lost => output.note("changes came too fast: some are not shown"),
        FileEvent::Gone => output.note("the directory is gone"),
        FileEvent::Armed | FileEvent::Error { .. } => {}
    }
    Ok(())
}
