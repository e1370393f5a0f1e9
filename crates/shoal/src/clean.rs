//! `shoal clean`: removes what runs that are over left behind: processes, control groups, files.

use std::process::ExitCode;

use runtime::Reaped;
use serde_json::json;

use crate::failure::Failure;
use crate::native;
use crate::output::{Output, Paint};

/// What was typed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sudo shoal clean              remove what is left of runs that are over\n  \
    sudo shoal clean --json       the same, for scripts\n\n\
    Runs that are alive are not touched. Containers of a Docker engine are removed by the next start\n\
    of their server, not here. The exit code is 1 if something could not be removed.")]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
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
        for line in told(&reaped) {
            output.say(&line);
        }
        for (path, why) in &reaped.stuck {
            let word = output.paint(Paint::Bad, "left");
            output.say(&format!("{word} {}: {why}", path.display()));
        }
    }
    Ok(if reaped.stuck.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was removed, in words.
fn told(reaped: &Reaped) -> Vec<String> {
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
    if let Some(runs) = counted(reaped.runs.len(), "run that is over", "runs that are over") {
        let what = if removed.is_empty() { "its marks".to_owned() } else { removed.join(" and ") };
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
    fn what_was_removed_is_said() {
        let none = Reaped::default();
        assert_eq!(told(&none), ["nothing was left behind"]);
        let some = Reaped {
            runs: vec!["a".into(), "b".into()],
            processes: 1,
            control_groups: 12,
            stuck: vec![],
        };
        assert_eq!(
            told(&some),
            ["removed 1 process and 12 control groups of 2 runs that are over: a, b"]
        );
        let marks = Reaped { runs: vec!["a".into()], ..Reaped::default() };
        assert_eq!(told(&marks), ["removed its marks of 1 run that is over: a"]);
    }
}
