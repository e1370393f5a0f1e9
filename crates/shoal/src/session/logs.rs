//! `shoal session logs`: prints what the harness wrote outside of turns.

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::sleep;
use wire::LogLine;

use super::arguments::LogsArgs;
use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::plain_text::plain;
use crate::server::cannot;

/// Pause between two requests for new lines.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn main(wanted: &LogsArgs, output: &Output) -> Result<ExitCode, Failure> {
    wanted.server.with(async |client| {
        let session = client.session(wanted.session);
        let mut after = wanted.after;
        loop {
            let page = session.logs(after).await.map_err(cannot("read the logs"))?;
            for line in &page.logs {
                print_line(line, wanted.json, output)?;
            }
            after = page.next.or(after);
            if !wanted.follow {
                return Ok(());
            }
            sleep(POLL_INTERVAL).await;
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print_line(line: &LogLine, json: bool, output: &Output) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(line)
            .map_err(|error| Failure::new("cannot write a line", error))?;
        output.say(&text);
        return Ok(());
    }
    let stream = output.paint(Paint::Faint, line.stream.as_str());
    let text = plain(&line.text.replace('\t', " "));
    output.say(&format!("{:>6}  {}  {stream}  {text}", line.id, line.at));
    Ok(())
}
