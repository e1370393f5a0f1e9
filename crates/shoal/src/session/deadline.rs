//! `shoal session deadline`, and the deadline of `shoal session create`.

use std::process::ExitCode;
use std::time::Duration;

use client::SessionId;
use model::DeadlineAction;
use wire::{DeadlineRequest, NewDeadline, SessionDeadline, SessionUpdate, Time};

use crate::failure::Failure;
use crate::output::Output;
use crate::server::{Server, cannot};
use crate::{duration, relative_time};

/// What happens at a deadline, as users type it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Then {
    /// End the session, and delete its files
    End,
    /// Pause the session, and keep its files
    Pause,
}

impl From<Then> for DeadlineAction {
    fn from(then: Then) -> Self {
        match then {
            Then::End => Self::End,
            Then::Pause => Self::Pause,
        }
    }
}

/// Flags of `shoal session create` for the deadline.
#[derive(Debug, Default, clap::Args)]
pub(super) struct CreateFlags {
    /// Deadline of the session: end or pause it after this time, like 2h, even if it is in use
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "deadline_action",
        conflicts_with = "deadline_at")]
    deadline_in: Option<Duration>,
    /// The same at a point in time, like 2026-12-31T18:00:00Z
    #[arg(long, value_name = "WHEN", requires = "deadline_action")]
    deadline_at: Option<Time>,
    /// End or pause the session after this time without use, like 30m
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "deadline_action")]
    deadline_idle: Option<Duration>,
    /// What to do at the deadline
    #[arg(long, value_name = "ACTION")]
    deadline_action: Option<Then>,
}

impl CreateFlags {
    pub(super) fn request(&self) -> Result<Option<DeadlineRequest>, Failure> {
        let Some(action) = self.deadline_action else { return Ok(None) };
        request(self.deadline_in, self.deadline_at, self.deadline_idle, action).map(Some)
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal session deadline SESSION --in 2h --action end      end it in two hours, even if it is in use\n  \
    shoal session deadline SESSION --idle 30m --action pause\n  \
    shoal session deadline SESSION --remove\n\n\
    What comes first counts. Idle time counts from the last use, and from now at the earliest; a\n\
    session is in use while a turn or program runs and while a process keeps it alive. The server\n\
    stores deadlines: a restart does not extend a time. After a crash of the server, idle time counts\n\
    from its restart if the session had a live sandbox. Times are whole seconds.")]
pub(super) struct DeadlineArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// After this time, like 2h, even if the session is in use
    #[arg(long = "in", value_name = "TIME", value_parser = duration::parse, conflicts_with = "at")]
    after: Option<Duration>,
    /// At this point in time, like 2026-12-31T18:00:00Z
    #[arg(long, value_name = "WHEN")]
    at: Option<Time>,
    /// After this time without use, like 30m
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    idle: Option<Duration>,
    /// What to do then
    #[arg(long, value_name = "ACTION", required_unless_present = "remove")]
    action: Option<Then>,
    /// Remove the deadline
    #[arg(long, conflicts_with_all = ["after", "at", "idle", "action"])]
    remove: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl DeadlineArgs {
    fn update(&self) -> Result<SessionUpdate, Failure> {
        let deadline = match self.action {
            Some(action) => Some(request(self.after, self.at, self.idle, action)?),
            None => None,
        };
        Ok(SessionUpdate { deadline: Some(NewDeadline(deadline)), ..SessionUpdate::default() })
    }
}

fn request(
    after: Option<Duration>,
    at: Option<Time>,
    idle: Option<Duration>,
    action: Then,
) -> Result<DeadlineRequest, Failure> {
    if after.is_none() && at.is_none() && idle.is_none() {
        return Err(Failure::new("cannot set a deadline", "no time is given")
            .remedy("say when: after a time, at a point in time, or after a time without use")
            .usage());
    }
    let (after_s, idle_s) = (whole_seconds(after)?, whole_seconds(idle)?);
    Ok(DeadlineRequest { at, after_s, idle_s, action: action.into() })
}

/// The server counts deadlines in seconds: no other time than the one that was given is set.
fn whole_seconds(time: Option<Duration>) -> Result<Option<u64>, Failure> {
    match time {
        Some(time) if time.subsec_nanos() > 0 => {
            let cause = format!("{time:?} is not a whole number of seconds");
            Err(Failure::new("cannot set a deadline", cause)
                .remedy("give whole seconds, like 1s, 90s or 30m")
                .usage())
        }
        Some(time) => Ok(Some(time.as_secs())),
        None => Ok(None),
    }
}

pub(super) fn main(wanted: &DeadlineArgs, output: &Output) -> Result<ExitCode, Failure> {
    let update = wanted.update()?;
    let session = wanted.server.with(async |client| {
        let changed = client.session(wanted.session).update(&update).await;
        changed.map_err(cannot("set the deadline"))
    })?;
    if wanted.json {
        output.say_value(&session)?;
    } else {
        output.say(&described(session.deadline, relative_time::now()));
    }
    Ok(ExitCode::SUCCESS)
}

/// A deadline in words.
pub(super) fn described(deadline: Option<SessionDeadline>, now: Time) -> String {
    let Some(deadline) = deadline else { return "none".to_owned() };
    let what = match deadline.action {
        DeadlineAction::End => "ends",
        DeadlineAction::Pause => "pauses",
    };
    let idle = deadline.idle_s.map(|seconds| {
        let span = relative_time::span(i64::try_from(seconds).unwrap_or(i64::MAX / 1000) * 1000);
        format!("after {span} without use")
    });
    let at = deadline.at.map(|at| format!("at {at}"));
    let when: Vec<String> = at.into_iter().chain(idle).collect();
    let due =
        deadline.due_at.map(|at| format!(" ({} as it is now)", relative_time::until(at, now)));
    format!("{what} {}{}", when.join(", or "), due.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: DeadlineArgs,
    }

    const ID: &str = "0192f3a0-0000-7000-8000-000000000001";

    fn typed(line: &str) -> Result<SessionUpdate, String> {
        let words = ["deadline", ID].into_iter().chain(line.split(' '));
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.args.update().map_err(|failure| failure.to_string())
    }

    #[test]
    fn deadline_flags_are_passed_on() {
        let set = typed("--in 90m --idle 2000ms --action pause").unwrap().deadline.unwrap().0;
        let expected = DeadlineRequest {
            at: None,
            after_s: Some(5400),
            idle_s: Some(2),
            action: DeadlineAction::Pause,
        };
        assert_eq!(set, Some(expected));
        assert_eq!(typed("--remove").unwrap().deadline, Some(NewDeadline(None)));
        for bad in [
            "--in 2h",
            "--action end",
            "--remove --idle 2h",
            "--in 1h --at 2026-01-01T00:00:00Z --action end",
        ] {
            assert!(typed(bad).is_err(), "{bad}");
        }
        for (part, time) in [("--idle 500ms", "500ms"), ("--in 1500ms", "1.5s")] {
            let told = typed(&format!("{part} --action end")).unwrap_err();
            assert!(told.contains(&format!("{time} is not a whole number of seconds")), "{told}");
        }
    }

    #[test]
    fn deadlines_are_described_with_what_comes_next() {
        let deadline = SessionDeadline {
            at: Some(Time(7_200_000)),
            idle_s: Some(600),
            action: DeadlineAction::End,
            due_at: Some(Time(600_000)),
        };
        let words = described(Some(deadline), Time(0));
        let expected = "ends at 1970-01-01T02:00:00.000Z, or after 10 min without use (in 10 min as it is now)";
        assert_eq!(words, expected);
        assert_eq!(described(None, Time(0)), "none");
    }
}
