//! `shoal templates`: lists, prints, puts and removes templates.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use model::{Placed, Template, TemplateName};
use serde_json::json;
use wire::TemplateList;

use crate::failure::Failure;
use crate::output::Output;
use crate::server::{Server, cannot};
use crate::table::Table;

/// Longest file that is read.
const BYTES_MAX: u64 = 1 << 20;

/// Arguments of `shoal templates`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    shoal templates                        list all templates\n  \
    shoal templates get default            print a template as TOML; a comment says where its workspaces are\n  \
    shoal templates put python.toml        make or replace a template, from TOML or JSON\n  \
    shoal templates get a | sed s/a/b/ | shoal templates put -\n  \
    shoal templates rm python --force      also end the leases of the template\n\n\
    Exit codes: 0; 1 if the server refused; 2 if the file cannot be used; 3 if no server answers."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    act: Option<Act>,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Debug, Clone, clap::Args)]
struct Shared {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List templates
    Ls(Shared),
    /// Print a template
    Get {
        /// Name of the template
        #[arg(value_parser = TemplateName::new)]
        name: TemplateName,
        #[command(flatten)]
        shared: Shared,
    },
    /// Make or replace a template
    Put {
        /// A file in TOML or JSON; - for standard input
        file: PathBuf,
        #[command(flatten)]
        shared: Shared,
    },
    /// Remove a template and its pool
    Rm {
        /// Name of the template
        #[arg(value_parser = TemplateName::new)]
        name: TemplateName,
        /// Also end the leases and launches of the template
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        shared: Shared,
    },
}

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let Arguments { act, shared } = arguments;
    match act.unwrap_or(Act::Ls(shared)) {
        Act::Ls(shared) => {
            let list = shared
                .server
                .with(async |client| client.templates().await.map_err(cannot("list templates")))?;
            if shared.json {
                output.say_value(&list)?;
            } else {
                table(&list).say(output, "there are no templates");
            }
        }
        Act::Get { name, shared } => {
            let (template, list) = shared.server.with(async |client| {
                let template = client.template(&name).await.map_err(cannot("get the template"))?;
                Ok((template, client.templates().await.map_err(cannot("list templates"))?))
            })?;
            if !shared.json
                && let Some(placed) = placed(&list, &name)
            {
                output.say(&format!("# workspace: {}", in_words(placed)));
            }
            print_template(&template, shared.json, output)?;
        }
        Act::Put { file, shared } => {
            let template = read(&file)?;
            let template = shared.server.with(async |client| {
                client.put_template(&template).await.map_err(cannot("put the template"))
            })?;
            if shared.json {
                output.say_value(&template)?;
            } else {
                output.say(template.name.as_str());
            }
        }
        Act::Rm { name, force, shared } => {
            output.remark(&format!("removing {name} and its sandboxes"));
            shared.server.with(async |client| {
                client.delete_template(&name, force).await.map_err(cannot("remove the template"))
            })?;
            if shared.json {
                output.say_json(&json!({ "removed": name }));
            } else {
                output.say(name.as_str());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_template(template: &Template, json: bool, output: &Output) -> Result<(), Failure> {
    if json {
        return output.say_value(template);
    }
    let text = toml::to_string(template)
        .map_err(|error| Failure::new("cannot write the template as TOML", error))?;
    output.say(text.trim_end());
    Ok(())
}

fn read(path: &Path) -> Result<Template, Failure> {
    let what = || format!("cannot use {}", path.display());
    let mut text = String::new();
    let source: std::io::Result<Box<dyn std::io::Read>> = if path == Path::new("-") {
        Ok(Box::new(std::io::stdin()))
    } else {
        std::fs::File::open(path).map(|file| -> Box<dyn std::io::Read> { Box::new(file) })
    };
    source
        .and_then(|source| source.take(BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| Failure::new(what(), error).usage())?;
    let template = parse(&text).map_err(|why| Failure::new(what(), why).usage())?;
    template.validate().map_err(|wrong| Failure::new(what(), wrong).usage())?;
    Ok(template)
}

/// Parses JSON if the text begins like JSON, else TOML.
fn parse(text: &str) -> Result<Template, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    toml::from_str(text).map_err(|error| error.to_string().trim().to_owned())
}

/// Where the workspaces of a template are.
fn placed<'a>(list: &'a TemplateList, name: &TemplateName) -> Option<&'a Placed> {
    list.effective.iter().find(|one| one.template == *name)?.workspace.as_ref()
}

fn in_words(placed: &Placed) -> String {
    let (kind, limit) = (placed.kind.as_str(), placed.limit.as_str());
    let why = placed.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    format!("{kind}, {limit} limit{why}")
}

fn table(list: &TemplateList) -> Table {
    let heading = ["TEMPLATE", "RUNTIME", "MEMORY", "CPU", "PIDS", "WORKSPACE", "POOL"];
    let mut table = Table::new(&heading);
    for template in &list.templates {
        let placed = placed(list, &template.name);
        let kind = placed.map_or("", |placed| placed.kind.as_str());
        let limits = &template.limits;
        table.row([
            template.name.to_string(),
            template.runtime.as_str().to_owned(),
            format!("{} MB", limits.memory_mb),
            format!("{}m", limits.cpu_milli),
            limits.pids.to_string(),
            format!("{} MB {kind}", limits.workspace_mb).trim_end().to_owned(),
            format!("{}+{}", template.pool.pool_size, template.pool.max_overflow),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_files_are_toml_or_json_and_errors_name_the_field() {
        let expected = {
            let mut template = Template::named(TemplateName::new("py").unwrap());
            template.pool.pool_size = 3;
            template
        };
        let toml = "name = \"py\"\n[pool]\npool_size = 3\n";
        assert_eq!(parse(toml), Ok(expected.clone()));
        assert_eq!(parse(" {\"name\":\"py\",\"pool\":{\"pool_size\":3}}"), Ok(expected.clone()));
        let written = toml::to_string(&expected).unwrap();
        assert_eq!(parse(&written), Ok(expected), "what is printed can be put back");
        for text in ["name = \"py\"\n[pool]\npol_size = 3\n", "{\"name\":\"py\",\"pol_size\":3}"] {
            assert!(parse(text).unwrap_err().contains("pol_size"), "{text}");
        }
    }
}
