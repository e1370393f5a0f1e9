//! `shoal clean`: removes what ended runs left behind: processes, control groups, files. Files in
//! lost+found may still be wanted, so only `--lost-found` removes them.

use std::path::PathBuf;
use std::process::ExitCode;

use engine::LostFound;
use runtime::Reaped;
use serde_json::json;

use crate::config::{self, ConfigError, HostContext, Overrides};
use crate::failure::Failure;
use crate::native;
use crate::output::{Output, Paint};
use crate::serve::data_dir::LOST_FOUND;

/// Arguments of `shoal clean`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sudo shoal clean              remove what a killed `shoal` left behind\n  \
    sudo shoal clean --json       the same, and report as JSON\n  \
    sudo shoal clean --lost-found         delete everything in DATA_DIR/lost+found\n\n\
    Running servers and commands are not touched. The next start of a server removes its Docker\n\
    containers; this command does not. Workspaces and archives that no record names are in\n\
    lost+found; only --lost-found removes them, also while the server runs. The exit code is 1 if\n\
    something could not be removed.")]
pub(crate) struct Arguments {
    /// Delete everything in lost+found of the data directory, and nothing else
    #[arg(long)]
    lost_found: bool,
    /// Data directory with lost+found
    #[arg(long, value_name = "DIR", requires = "lost_found")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    if arguments.lost_found {
        return lost_found(arguments, output);
    }
    let reaped = native::clean()?;
    if arguments.json {
        let stuck = reaped.stuck.iter();
        let stuck: Vec<_> = stuck
            .map(|(path, why)| json!({ "path": path.display().to_string(), "why": why }))
            .collect();
        output.say_json(&json!({
            "runs": reaped.runs,
            "processes": reaped.processes,
            "control_groups": reaped.control_groups,
            "stuck": stuck,
        }));
    } else {
        for line in summary(&reaped) {
            output.say(&line);
        }
        for (path, why) in &reaped.stuck {
            let word = output.paint(Paint::Bad, "not removed");
            output.say(&format!("{word} {}: {why}", path.display()));
        }
    }
    Ok(if reaped.stuck.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn lost_found(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let overrides = Overrides::of_data_dir(arguments.data_dir.as_deref());
    let effective = config::load(&overrides, &HostContext::read());
    let data_dir = effective.map_err(ConfigError::failure)?.config.server.data_dir;
    let place = data_dir.join(LOST_FOUND);
    let removed = LostFound::at(&place).remove(None).map_err(|error| {
        Failure::new(format!("cannot remove the files in {}", place.display()), error)
            .remedy("run it with sudo, or remove them by hand: nothing uses them")
    })?;
    if arguments.json {
        output.say_json(&json!({ "lost_found": removed }));
    } else {
        output.say(&match removed {
            0 => "lost+found is empty".to_owned(),
            1 => "removed 1 thing from lost+found".to_owned(),
            more => format!("removed {more} things from lost+found"),
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// What was removed, as lines of text.
fn summary(reaped: &Reaped) -> Vec<String> {
    let counted = |count: usize, one: &str, many: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        more => Some(format!("{more} {many}")),
    };
    let removed: Vec<String> = [
        counted(reaped.processes as usize, "process", "processes"),
        counted(reaped.control_groups as usize, "control group", "control groups"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut lines = Vec::new();
    if let Some(runs) = counted(reaped.runs.len(), "ended run", "ended runs") {
        let what = if removed.is_empty() { "the files".to_owned() } else { removed.join(" and ") };
        lines.push(format!("removed {what} of {runs}: {}", reaped.runs.join(", ")));
    } else if !removed.is_empty() {
        lines.push(format!("removed {}", removed.join(" and ")));
    } else if reaped.stuck.is_empty() {
        lines.push("nothing was left behind".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_prints_what_it_removed() {
        let none = Reaped::default();
        assert_eq!(summary(&none), ["nothing was left behind"]);
        let some = Reaped {
            runs: vec!["a".into(), "b".into()],
            processes: 1,
            control_groups: 12,
            stuck: vec![],
        };
        assert_eq!(
            summary(&some),
            ["removed 1 process and 12 control groups of 2 ended runs: a, b"]
        );
        let marks = Reaped { runs: vec!["a".into()], ..Reaped::default() };
        assert_eq!(summary(&marks), ["removed the files of 1 ended run: a"]);
    }
}
