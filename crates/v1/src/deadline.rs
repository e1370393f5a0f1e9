//! Deadlines of sessions, between the API and the engine.

use engine::{DeadlineChange, SessionView};
use model::{Deadline, Wall};
use web::refused::Refused;
use wire::{DeadlineRequest, NewDeadline, SessionDeadline, Time};

/// The deadline that a client asked for.
pub(crate) fn wanted(asked: DeadlineRequest, now: Wall) -> Result<Deadline, Refused> {
    let DeadlineRequest { at, after_s, idle_s, action } = asked;
    if at.is_some() && after_s.is_some() {
        let cause = "deadline: give `at` or `after_s`, not both";
        return Err(Refused::invalid("deadline", cause));
    }
    let ms_of = |field: &'static str, seconds: u64| {
        let ms = seconds.saturating_mul(1000);
        if ms == 0 || ms > Deadline::MS_MAX {
            let most = Deadline::MS_MAX / 1000;
            return Err(Refused::invalid(field, format!("{field}: must be from 1 to {most}")));
        }
        Ok(ms)
    };
    let after_ms = after_s.map(|seconds| ms_of("deadline.after_s", seconds)).transpose()?;
    let idle_ms = idle_s.map(|seconds| ms_of("deadline.idle_s", seconds)).transpose()?;
    // A time before 1970 has passed as surely as the first moment.
    let at = at.map(|Time(ms)| Wall(u64::try_from(ms).unwrap_or(0)));
    let at = at.or(after_ms.map(|ms| Wall(now.0.saturating_add(ms))));
    let deadline = Deadline { at, idle_ms, action };
    match deadline.refused_at(now) {
        // Its cause begins with the field.
        Some(cause) => {
            let field = cause.split(':').next().unwrap_or("deadline").to_owned();
            Err(Refused::invalid(field, cause))
        }
        None => Ok(deadline),
    }
}

/// The change of a deadline that a client asked for.
pub(crate) fn change(asked: Option<NewDeadline>, now: Wall) -> Result<DeadlineChange, Refused> {
    Ok(match asked {
        None => DeadlineChange::Keep,
        Some(NewDeadline(None)) => DeadlineChange::Remove,
        Some(NewDeadline(Some(asked))) => DeadlineChange::Set(wanted(asked, now)?),
    })
}

/// The deadline of a session as clients see it.
pub(crate) fn shown(view: &SessionView) -> Option<SessionDeadline> {
    view.deadline.map(|deadline| SessionDeadline {
        at: deadline.at.map(Time::from),
        idle_s: deadline.idle_ms.map(|ms| ms.div_ceil(1000)),
        action: deadline.action,
        due_at: view.deadline_at.map(Time::from),
    })
}

#[cfg(test)]
mod tests {
    use model::DeadlineAction;

    use super::*;

    const NOW: Wall = Wall(1_000_000);

    fn asked(at: Option<i64>, after_s: Option<u64>, idle_s: Option<u64>) -> DeadlineRequest {
        DeadlineRequest { at: at.map(Time), after_s, idle_s, action: DeadlineAction::End }
    }

    #[test]
    fn a_deadline_is_relative_or_absolute_and_not_both() {
        let at = |asked| wanted(asked, NOW).map(|deadline| (deadline.at, deadline.idle_ms)).ok();
        assert_eq!(at(asked(Some(2_000_000), None, None)), Some((Some(Wall(2_000_000)), None)));
        assert_eq!(at(asked(None, Some(5), Some(2))), Some((Some(Wall(1_005_000)), Some(2000))));
        for bad in [
            asked(None, None, None),
            asked(Some(2_000_000), Some(5), None),
            asked(Some(1_000_000), None, None),
            asked(Some(-5), None, None),
            asked(None, Some(0), None),
            asked(None, None, Some(u64::MAX)),
        ] {
            assert_eq!(at(bad), None, "{bad:?}");
        }
    }
}
