//! The baseline for benchmarks: starting a program with nothing around it, from a process as small
//! as ours. Only `bench` uses it.

use std::io::{Read as _, Write as _};
use std::process::{Command, ExitCode, Stdio};

/// For each byte on stdin: starts `program noop`, waits for its end, and answers with the
/// nanoseconds it took, as 8 bytes.
#[expect(clippy::disallowed_methods, reason = "measuring is its job")]
pub(crate) fn spawner(program: &str) -> ExitCode {
    let mut byte = [0];
    let (mut stdin, mut stdout) = (std::io::stdin(), std::io::stdout());
    while stdin.read_exact(&mut byte).is_ok() {
        let start = std::time::Instant::now();
        let status = Command::new(program).arg("noop").stdin(Stdio::null()).status();
        let nanoseconds = start.elapsed().as_nanos() as u64;
        if !status.is_ok_and(|status| status.success()) {
            return ExitCode::FAILURE;
        }
        let answered = stdout.write_all(&nanoseconds.to_le_bytes()).and_then(|()| stdout.flush());
        if answered.is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}
