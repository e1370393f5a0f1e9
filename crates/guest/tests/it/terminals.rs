//! Programs on a terminal.

use guest_protocol::message::{
    Command, ExitStatus, FaultCode, Reply, Request, Stdio, TerminalSize, lane,
};

use crate::host::{Host, program, shell, shell_on, spawn};

fn on_terminal(line: &str) -> Request {
    let size = TerminalSize { rows: 24, columns: 80 };
    spawn(program(Command::Shell(line.into()), Stdio::Terminal(size)))
}

fn wait_for(host: &mut Host, channel: u32, text: &str) {
    host.until(&format!("{text:?} on the terminal"), |host| {
        host.text(channel, lane::MAIN).contains(text)
    });
}

#[test]
fn a_program_gets_a_terminal() {
    let mut host = Host::start();
    let line = "test -t 0 && test -t 1 && test -t 2 && echo yes > /dev/tty; stty size; echo $TERM; \
                exit 7";
    let channel = host.ask(&on_terminal(line));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(7));
    assert_eq!(host.text(channel, lane::MAIN), "yes\r\n24 80\r\nxterm-256color\r\n");
}

#[test]
fn a_terminal_size_changes() {
    let mut host = Host::start();
    let channel = host
        .ask(&on_terminal("trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.02; done"));
    wait_for(&mut host, channel, "up");
    let size = TerminalSize { rows: 50, columns: 132 };
    assert_eq!(host.call(&Request::Resize { process: channel, size }), Reply::Done);
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert!(host.text(channel, lane::MAIN).contains("50 132"));
    let resize = Request::Resize { process: channel, size };
    assert_eq!(host.code(&resize), FaultCode::NotFound, "the program has ended");
    let plain = host.ask(&shell("sleep 1000"));
    assert_eq!(host.code(&Request::Resize { process: plain, size }), FaultCode::NotFound);
}

#[test]
fn control_characters_work() {
    let mut host = Host::start();
    let channel = host.ask(&on_terminal("echo up; exec sleep 1000"));
    wait_for(&mut host, channel, "up");
    host.send(channel, lane::MAIN, b"\x03");
    assert_eq!(host.exited(channel).status, ExitStatus::Signal(2));
}

#[test]
fn input_is_read_and_echoed_and_ends() {
    let mut host = Host::start();
    let channel = host.ask(&on_terminal("read line; echo got $line; cat; echo over"));
    host.send(channel, lane::MAIN, b"hello\n");
    wait_for(&mut host, channel, "got hello");
    host.send(channel, lane::MAIN, b"more\n");
    wait_for(&mut host, channel, "more\r\nmore\r\n");
    host.end(channel, lane::MAIN);
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert!(host.text(channel, lane::MAIN).ends_with("over\r\n"));
}

#[test]
fn big_output_arrives_whole() {
    let mut host = Host::start();
    let channel = host.ask(&on_terminal("stty -opost; seq 1 200000"));
    host.unread.insert((channel, lane::MAIN));
    host.until("it is stuck", |host| host.data(channel, lane::MAIN).len() >= 256 * 1024);
    assert_eq!(host.run("echo fine").stdout, "fine\n");
    host.read_again(channel, lane::MAIN);
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    let expected: Vec<u8> = (1..=200_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    assert!(host.data(channel, lane::MAIN) == expected);
}

#[test]
fn a_reset_terminal_hangs_up() {
    let mut host = Host::start();
    let channel = host.ask(&on_terminal("echo up; exec sleep 1000"));
    wait_for(&mut host, channel, "up");
    host.endpoint.reset(channel, lane::MAIN);
    host.flush();
    assert_eq!(host.exited(channel).status, ExitStatus::Signal(1));
}

#[test]
fn a_shell_on_a_terminal_controls_its_jobs() {
    let mut host = Host::start();
    let size = TerminalSize { rows: 24, columns: 80 };
    let channel = host.ask(&shell_on("PS1='# ' exec bash --norc -i", Stdio::Terminal(size)));
    wait_for(&mut host, channel, "# ");
    host.send(channel, lane::MAIN, b"echo mark$((1+1)); sleep 1000\n");
    wait_for(&mut host, channel, "mark2");
    // While the shell reads a line itself, the character does not control jobs.
    host.until("it is stopped", |host| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        host.send(channel, lane::MAIN, b"\x1a");
        host.text(channel, lane::MAIN).contains("Stopped")
    });
    host.send(channel, lane::MAIN, b"jobs; kill %1; exit 12\n");
    host.until("the program has ended", |host| {
        if !host.has_reply(channel) {
            host.send(channel, lane::MAIN, b"exit 12\n");
        }
        host.has_reply(channel)
    });
    assert_eq!(host.exited(channel).status, ExitStatus::Code(12));
}
