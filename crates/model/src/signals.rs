//! The names of signals, by their numbers on Linux.

const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// The name of a signal; those without one are called by their number.
pub fn name(signal: i32) -> String {
    let at = usize::try_from(signal).ok().and_then(|number| number.checked_sub(1));
    match at.and_then(|at| NAMES.get(at)) {
        Some(name) => (*name).to_owned(),
        None => format!("SIG{signal}"),
    }
}

/// The number of a signal that is called by its name, with or without `SIG`, or by its number.
pub fn number(name: &str) -> Option<i32> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = NAMES.iter().position(|known| known.strip_prefix("SIG") == Some(bare));
    let number = match known {
        Some(at) => at + 1,
        None => bare.parse().ok().filter(|_| bare.bytes().all(|byte| byte.is_ascii_digit()))?,
    };
    // Those beyond have no name, and are for programs among themselves.
    (1..=64).contains(&number).then(|| i32::try_from(number).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_by_name_or_number() {
        for (text, expected) in [
            ("SIGHUP", Some(1)),
            ("hup", Some(1)),
            ("Term", Some(15)),
            ("9", Some(9)),
            ("SIG34", Some(34)),
            ("0", None),
            ("65", None),
            ("-1", None),
            ("+1", None),
            ("SIG", None),
            ("", None),
            ("SIGNOPE", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
        for signal in 1..=64 {
            assert_eq!(number(&name(signal)), Some(signal));
        }
    }

    #[test]
    fn signals_have_the_names_that_people_know() {
        for (number, expected) in
            [(1, "SIGHUP"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM"), (31, "SIGSYS")]
        {
            assert_eq!(name(number), expected);
        }
        assert_eq!((name(34), name(0), name(-1)), ("SIG34".into(), "SIG0".into(), "SIG-1".into()));
    }
}
