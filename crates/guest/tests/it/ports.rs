//! Connections to ports inside, and the list of listening ports. In these tests, inside is the test
//! machine itself.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::thread;

use guest_protocol::message::{FaultCode, Port, Reply, Request, lane};

use crate::host::{Host, Seen};

fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

impl Host {
    fn dial(&mut self, port: u16) -> u32 {
        let channel = self.ask(&Request::Dial { port });
        assert_eq!(self.reply(channel), Reply::Started { pid: None });
        channel
    }

    fn has_ended(&self, channel: u32) -> bool {
        self.seen.get(&channel).is_some_and(|seen| seen.contains(&Seen::End(lane::MAIN)))
    }
}

#[test]
fn a_dialled_port_carries_bytes_both_ways() {
    let mut host = Host::start();
    let (listener, port) = listen();
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
        all.len()
    });
    let channel = host.dial(port);
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    host.send(channel, lane::MAIN, &bytes);
    // The other side answers only after this end: each direction ends by itself.
    host.end(channel, lane::MAIN);
    assert_eq!(host.reply(channel), Reply::Done);
    assert_eq!(echo.join().unwrap(), bytes.len());
    assert!(host.data(channel, lane::MAIN) == bytes);
    assert!(host.has_ended(channel));
}

#[test]
fn the_listener_may_end_the_connection_first() {
    let mut host = Host::start();
    let (listener, port) = listen();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        rest
    });
    let channel = host.dial(port);
    host.until("its end", |host| host.has_ended(channel));
    assert_eq!(host.text(channel, lane::MAIN), "bye");
    assert!(!host.has_reply(channel), "the way there is still open");
    host.send(channel, lane::MAIN, b"so long");
    host.end(channel, lane::MAIN);
    assert_eq!(host.reply(channel), Reply::Done);
    assert_eq!(server.join().unwrap(), "so long");
}

#[test]
fn bytes_sent_before_a_dial_connects_arrive() {
    let mut host = Host::start();
    let (listener, port) = listen();
    let channel = host.ask(&Request::Dial { port });
    host.send(channel, lane::MAIN, b"early");
    host.end(channel, lane::MAIN);
    let (mut stream, _) = listener.accept().unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert_eq!(all, "early");
    drop(stream);
    assert_eq!(host.reply(channel), Reply::Started { pid: None });
    assert_eq!(host.reply(channel), Reply::Done);
}

#[test]
fn ipv6_is_tried_after_ipv4() {
    let mut host = Host::start();
    let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else {
        eprintln!("skipped: there is no IPv6 here");
        return;
    };
    let channel = host.dial(listener.local_addr().unwrap().port());
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"six").unwrap();
    drop(stream);
    host.end(channel, lane::MAIN);
    assert_eq!(host.reply(channel), Reply::Done);
    assert_eq!(host.text(channel, lane::MAIN), "six");
}

#[test]
fn a_dial_without_a_listener_is_refused() {
    let mut host = Host::start();
    let (listener, port) = listen();
    drop(listener);
    let fault = host.fault(&Request::Dial { port });
    assert_eq!(fault.code, FaultCode::NotFound);
    assert_eq!(fault.message, format!("nothing listens on port {port}"));
    assert_eq!(host.code(&Request::Dial { port: 0 }), FaultCode::Invalid);
}

#[test]
fn a_connection_that_is_given_up_is_closed() {
    let mut host = Host::start();
    let (listener, port) = listen();
    let channel = host.dial(port);
    let (mut stream, _) = listener.accept().unwrap();
    host.endpoint.reset(channel, lane::MAIN);
    host.flush();
    assert_eq!(host.reply(channel), Reply::Done);
    assert_eq!(stream.read(&mut [0; 10]).unwrap_or(0), 0);
}

#[test]
fn a_listener_that_goes_away_ends_the_connection() {
    let mut host = Host::start();
    let (listener, port) = listen();
    let channel = host.dial(port);
    let (stream, _) = listener.accept().unwrap();
    drop::<TcpStream>(stream);
    host.until("its end", |host| host.has_ended(channel));
    host.until("writing fails", |host| {
        host.endpoint.send_data(channel, lane::MAIN, b"hello?");
        host.has_reply(channel)
    });
    assert_eq!(host.reply(channel), Reply::Done);
}

#[test]
fn a_slow_reader_holds_up_only_its_own_connection() {
    let mut host = Host::start();
    let (listener, port) = listen();
    let server = thread::spawn(move || {
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                thread::spawn(move || stream.write_all(&vec![5; 20_000_000]))
            })
            .collect();
        for writer in writers {
            writer.join().unwrap().unwrap();
        }
    });
    let slow = host.dial(port);
    host.unread.insert((slow, lane::MAIN));
    let fast = host.dial(port);
    host.until("all of the fast one", |host| host.has_ended(fast));
    assert_eq!(host.data(fast, lane::MAIN).len(), 20_000_000);
    host.until("what fits of the slow one", |host| host.data(slow, lane::MAIN).len() >= 256 * 1024);
    assert_eq!(host.data(slow, lane::MAIN).len(), 256 * 1024);
    host.read_again(slow, lane::MAIN);
    host.until("all of the slow one", |host| host.has_ended(slow));
    assert_eq!(host.data(slow, lane::MAIN).len(), 20_000_000);
    server.join().unwrap();
}

#[test]
fn ports_are_reported() {
    let mut host = Host::start();
    let (_local, local_port) = listen();
    let open = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let open_port = open.local_addr().unwrap().port();
    let Reply::Ports(ports) = host.call(&Request::Ports) else { panic!() };
    assert!(ports.contains(&Port { port: local_port, loopback_only: true }));
    assert!(ports.contains(&Port { port: open_port, loopback_only: false }));
    assert!(ports.is_sorted());
}
