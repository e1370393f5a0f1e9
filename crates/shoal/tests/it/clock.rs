//! A server on a machine whose clock is set while it runs. The test does not set the clock of the
//! machine: a small library between the server and the clock adds what a file says.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::shell::{able, eventually, skipped};
use crate::test_server::{Scratch, TestServer, isolated_command};

/// Adds the seconds in a file to the wall clock, and leaves other clocks as they are.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *found) {
    int result = syscall(SYS_clock_gettime, clock, found);
    const char *path = getenv("SET_BY");
    if (result != 0 || clock != CLOCK_REALTIME || path == NULL) return result;
    char text[32] = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return result;
    if (read(file, text, sizeof text - 1) > 0) found->tv_sec += atol(text);
    close(file);
    return result;
}
"#;

/// Builds the library, where there is a compiler.
fn library(scratch: &Path) -> Option<PathBuf> {
    let (source, built) = (scratch.join("clock.c"), scratch.join("clock.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&built).arg(&source);
    match compiler.status() {
        Ok(status) if status.success() => Some(built),
        Ok(_) | Err(_) => {
            skipped("no compiler of C");
            None
        }
    }
}

#[test]
fn a_clock_that_is_set_ends_no_lease() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let Some(library) = library(&scratch.0).filter(|_| able()) else { return };
    let set_by = scratch.0.join("set-by");
    std::fs::write(&set_by, "0").unwrap();
    let served = TestServer::start_by(scratch, &[], |arguments| {
        let mut command = isolated_command(arguments);
        command.env("LD_PRELOAD", &library).env("SET_BY", &set_by);
        command
    });
    let created = served.json(&["create", "--json"]);
    let id = created["sandbox"]["id"].as_str().or_else(|| created["id"].as_str()).unwrap();
    for seconds in ["3600", "-3600"] {
        let clock_changes = |log: &str| log.matches("the machine's time was set").count();
        let before = clock_changes(&served.log());
        std::fs::write(&set_by, seconds).unwrap();
        eventually("the change of the clock is logged", || clock_changes(&served.log()) > before);
        assert_eq!(served.text(&["exec", id, "--", "echo", "on"]), "on", "by {seconds}");
    }
    let (code, _) = served.stop(Signal::TERM);
    assert_eq!(code, Some(0));
}
