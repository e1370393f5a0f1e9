//! `shoal run` at a terminal: keys, size, Ctrl-C, and the terminal as it was afterwards.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::shell::{able, eventually, finish, shoal};

const QUIET: Duration = Duration::from_secs(30);

/// A terminal: our end as a person has it, and the end that programs have.
pub(crate) struct Terminal {
    person: File,
    program: OwnedFd,
    shown: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    pub(crate) fn new(rows: u16, columns: u16) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let program = open(name.as_c_str(), flags, Mode::empty()).unwrap();
        let person = File::from(master);
        let mut screen = person.try_clone().unwrap();
        let (show, shown) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                if show.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let terminal = Self { person, program, shown, seen: String::new() };
        terminal.resize(rows, columns);
        terminal
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.person, size).unwrap();
    }

    pub(crate) fn end(&self) -> Stdio {
        Stdio::from(self.program.try_clone().unwrap())
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.person.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until this is on the screen, and forgets what came before.
    fn shows(&mut self, text: &str) {
        while !self.seen.contains(text) {
            let Ok(more) = self.shown.recv_timeout(QUIET) else {
                panic!("{text:?} is not on the screen: {:?}", self.seen);
            };
            self.seen.push_str(&String::from_utf8_lossy(&more));
        }
        let end = self.seen.find(text).unwrap() + text.len();
        self.seen.drain(..end);
    }

    /// Everything that is on the screen by now.
    pub(crate) fn screen(&mut self) -> String {
        const LAST: &str = "that is all";
        let mut program = File::from(self.program.try_clone().unwrap());
        program.write_all(LAST.as_bytes()).unwrap();
        while !self.seen.contains(LAST) {
            let more = self.shown.recv_timeout(QUIET).expect("the end of the screen");
            self.seen.push_str(&String::from_utf8_lossy(&more));
        }
        self.seen.clone()
    }

    /// Whether a person sees what they type.
    pub(crate) fn shows_keys(&self) -> bool {
        tcgetattr(&self.program).unwrap().local_modes.contains(LocalModes::ECHO)
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.program).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

#[test]
fn a_shell_at_a_terminal_is_a_shell_at_a_terminal() {
    if !able() {
        return;
    }
    let mut terminal = Terminal::new(31, 97);
    let child = shoal(&["run", "--timeout=60s", "--", "sh"])
        .stdin(terminal.end())
        .stdout(terminal.end())
        .stderr(terminal.end())
        .env("TERM", "vt220")
        .spawn()
        .unwrap();
    terminal.shows("$ ");
    assert!(terminal.is_raw());
    terminal.keys("stty size; echo kind $TERM\r");
    terminal.shows("31 97\r\nkind vt220\r\n");
    terminal.keys("test -t 0 && test -t 1 && test -t 2 && echo all th\"\"ree\r");
    terminal.shows("all three\r\n");
    // The key reaches the program through the terminal's own rules, not us.
    terminal.keys("sleep 50; echo interr\"\"upted $?\r");
    terminal.shows("\r\n");
    std::thread::sleep(Duration::from_millis(300));
    terminal.keys("\u{3}");
    terminal.keys("echo al\"\"ive\r");
    terminal.shows("alive\r\n");
    terminal.resize(40, 120);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::WINCH).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    terminal.keys("stty size\r");
    terminal.shows("40 120\r\n");
    terminal.keys("exit 9\r");
    assert_eq!(finish(child, &[]).status.code(), Some(9));
    eventually("the terminal is as it was", || !terminal.is_raw());
}

#[test]
fn a_terminal_can_be_refused_and_forced() {
    if !able() {
        return;
    }
    let ask = "test -t 1 && echo terminal || echo pipe";
    let mut terminal = Terminal::new(24, 80);
    let child = shoal(&["run", "--timeout=30s", "--tty=no", "--shell", ask])
        .stdin(terminal.end())
        .stdout(terminal.end())
        .spawn()
        .unwrap();
    terminal.shows("pipe");
    assert!(finish(child, &[]).status.success());
    let forced = crate::shell::run_shoal(&["run", "--timeout=30s", "-t", "--shell", ask]);
    assert_eq!(forced.text(), "terminal\r\n", "{}", forced.stderr);
}
