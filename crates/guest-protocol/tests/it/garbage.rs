//! A hostile other side: whatever it sends, this side neither panics nor holds more memory than one
//! frame and what it was sent. Tens of thousands of inputs, each from a random seed that is
//! printed.

use guest_protocol::frame::{HEADER_BYTES, MAX_MESSAGE_BYTES};
use guest_protocol::launcher::{FromLauncher, LauncherConfig, ToLauncher};
use guest_protocol::message::{Command, Pipe, Reply, Request, Spawn, Stdio, TerminalSize};
use guest_protocol::{Endpoint, Env, Incoming, decode};

struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll(256) as u8).collect()
    }
}

/// What a real host might send.
fn honest(dice: &mut Dice) -> Vec<u8> {
    let mut host = Endpoint::new();
    for channel in 1..=1 + dice.roll(6) as u32 {
        let request = match dice.roll(6) {
            0 => Request::Ping,
            1 => Request::Claim { env: [("A", "b")].into_iter().collect() },
            2 => Request::Move { from: "a".into(), to: "b".into(), overwrite: false },
            3 => Request::Resize { process: 1, size: TerminalSize { rows: 1, columns: 2 } },
            4 => Request::MakeLink { path: "a".into(), target: "../b".into() },
            _ => Request::Spawn(Box::new(Spawn {
                command: Command::Argv(vec!["ls".into(), "-l".into()]),
                env: Env::default(),
                cwd: None,
                stdio: Stdio::Pipes { stdin: Pipe::Null, stdout: Pipe::Lane, stderr: Pipe::Lane },
                limits: guest_protocol::message::ProcessLimits::default(),
                announce: true,
            })),
        };
        host.send(channel, &request).unwrap();
        let data = dice.bytes(dice.0 as usize % 300);
        host.send_data(channel, dice.roll(3) as u8, &data);
        match dice.roll(3) {
            0 => host.end(channel, 0),
            1 => host.reset(channel, 1),
            _ => {}
        }
    }
    host.outgoing().to_vec()
}

fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..dice.roll(6) {
        let place = dice.roll(bytes.len());
        if bytes.is_empty() {
            return;
        }
        match dice.roll(6) {
            0 => bytes[place] = dice.roll(256) as u8,
            1 => bytes[place] ^= 1 << dice.roll(8),
            2 => bytes.truncate(place),
            3 => {
                let count = dice.roll(20);
                let noise = dice.bytes(count);
                bytes.splice(place..place, noise);
            }
            4 => {
                let piece = bytes[place..bytes.len().min(place + dice.roll(80))].to_vec();
                let to = dice.roll(bytes.len());
                bytes.splice(to..to, piece);
            }
            _ => {
                let until = bytes.len().min(place + 4);
                bytes[place..until].fill([0, 0xff][dice.roll(2)]);
            }
        }
    }
}

/// Feeds it in pieces and answers as a guest would; how far it gets does not matter.
fn endure(bytes: &[u8], dice: &mut Dice, mut endpoint: Endpoint) {
    endpoint.send(1, &Request::Ping).unwrap();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(rest.len().min(1 + dice.roll(200)));
        rest = more;
        let fed = endpoint.feed(piece);
        let bound = HEADER_BYTES + MAX_MESSAGE_BYTES + 64 * (bytes.len() + 64);
        assert!(endpoint.held_bytes() <= bound, "{} bytes held", endpoint.held_bytes());
        while let Some(incoming) = endpoint.next() {
            match incoming {
                Incoming::Message { channel, payload } => {
                    let _ = decode::<Request>(&payload);
                    let _ = decode::<Reply>(&payload);
                    if dice.roll(4) == 0 {
                        endpoint.close(channel);
                    }
                }
                Incoming::Data { channel, lane, bytes } => {
                    endpoint.consumed(channel, lane, bytes.len());
                }
                Incoming::End { channel, lane } | Incoming::Writable { channel, lane } => {
                    endpoint.send_data(channel, lane, &[0; 100]);
                }
                Incoming::Reset { channel, lane } => endpoint.reset(channel, lane),
            }
        }
        endpoint.sent(dice.roll(1000));
        if fed.is_err() {
            assert!(endpoint.feed(rest).is_err(), "an error is final");
            break;
        }
    }
}

#[test]
fn mutated_streams_never_panic() {
    for seed in 1..=40_000 {
        let mut dice = Dice::new(seed);
        let mut bytes = honest(&mut dice);
        mutate(&mut bytes, &mut dice);
        let result = std::panic::catch_unwind(move || {
            let side = if seed % 2 == 0 { Endpoint::new() } else { Endpoint::accepting() };
            endure(&bytes, &mut dice, side);
        });
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn noise_never_panics() {
    for seed in 1..=20_000 {
        let mut dice = Dice::new(seed);
        let count = dice.roll(400);
        let mut bytes = dice.bytes(count);
        // Most of it must pass the first check, or only that check would be tested.
        if seed % 4 != 0 && bytes.len() > 10 {
            bytes[..4].copy_from_slice(&(6 + dice.roll(40) as u32).to_le_bytes());
            bytes[4..8].copy_from_slice(&(dice.roll(3) as u32).to_le_bytes());
            bytes[8] = dice.roll(6) as u8;
            bytes[9] = dice.roll(4) as u8;
        }
        let result = std::panic::catch_unwind(move || {
            let side = if seed % 2 == 0 { Endpoint::new() } else { Endpoint::accepting() };
            endure(&bytes, &mut dice, side);
        });
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn noise_in_messages_never_panics() {
    let mut dice = Dice(0x5eed);
    for _ in 0..60_000 {
        let count = dice.roll(60);
        let mut bytes = dice.bytes(count);
        if let Some(first) = bytes.first_mut() {
            *first %= 16;
        }
        let _ = decode::<Request>(&bytes);
        let _ = decode::<Reply>(&bytes);
        let _ = decode::<ToLauncher>(&bytes);
        let _ = decode::<FromLauncher>(&bytes);
        let _ = decode::<LauncherConfig>(&bytes);
    }
}

#[test]
fn a_length_is_not_believed_before_bytes_come() {
    let mut guest = Endpoint::accepting();
    let mut header = [0_u8; HEADER_BYTES];
    header[..4].copy_from_slice(&(MAX_MESSAGE_BYTES as u32 + 6).to_le_bytes());
    header[4] = 1;
    guest.feed(&header).unwrap();
    assert_eq!(guest.held_bytes(), 0);
    guest.feed(&[0]).unwrap();
    assert!(guest.held_bytes() <= MAX_MESSAGE_BYTES);
}

#[test]
fn an_idle_endpoint_holds_no_memory() {
    let (mut host, mut guest) = (Endpoint::new(), Endpoint::accepting());
    assert_eq!((host.held_bytes(), guest.held_bytes()), (0, 0));
    for channel in 1..100 {
        host.send(channel, &Request::Ping).unwrap();
        host.send_data(channel, 0, &vec![0; 100_000]);
    }
    guest.feed(host.outgoing()).unwrap();
    host.sent(host.outgoing().len());
    while guest.next().is_some() {}
    for channel in 1..100 {
        guest.close(channel);
        host.close(channel);
    }
    assert_eq!((host.held_bytes(), guest.held_bytes()), (0, 0));
}
