//! How a program ended, as the API shows it.

use std::time::Duration;

use engine::{Exit, ExitStatus};
use wire::ExecExit;

/// How a program ended, without what its output was truncated to.
pub fn exit(exit: &Exit, took: Duration) -> ExecExit {
    let (exit_code, signal) = match exit.status {
        ExitStatus::Code(code) => (code, None),
        ExitStatus::Signal(signal) => (128 + signal, Some(model::signals::name(signal))),
    };
    ExecExit {
        exit_code,
        signal,
        oom: exit.out_of_memory,
        duration_ms: (took.as_secs_f64() * 1_000_000.0).round() / 1000.0,
        ..ExecExit::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_by_a_signal_has_its_name_and_code() {
        let of =
            |status| Exit { status, out_of_memory: false, user_us: 0, system_us: 0, max_rss_kb: 0 };
        let took = Duration::from_micros(612);
        let killed = exit(&of(ExitStatus::Signal(9)), took);
        assert_eq!((killed.exit_code, killed.signal.as_deref()), (137, Some("SIGKILL")));
        let ended = exit(&of(ExitStatus::Code(3)), took);
        assert_eq!((ended.exit_code, ended.signal, ended.duration_ms), (3, None, 0.612));
    }
}
