//! What lies outside, made up: a resolver and all hosts, on loopback. Every connection of the way out
//! comes to one listener, as to the proxy of an operator, so that the hosts can have public addresses
//! and no packet leaves the machine. It must never lead anywhere: it only says who was reached, and
//! remembers what arrived.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinHandle;

/// The only hosts that may ever be reached, as the attempts know them.
const REACHABLE: &[&str] = &[
    "45.0.0.1:443",
    "45.0.0.2:80",
    "45.0.0.3:443",
    "45.0.0.4:443",
    "45.0.0.7:443",
    "45.0.0.8:443",
    "45.0.0.9:443",
    DEAD,
];
/// It may be tried, and does not answer.
const DEAD: &str = "45.0.0.66:443";
/// It asks for another greeting.
const RETRIES: &str = "45.0.0.7:443";
/// Parts of what must not arrive. The attempts take care that these are in it.
const NEVER: &[&str] = &["evil", "smuggled", "h2c", "http2-settings", "other.shoal", "names-no"];
/// The address of the node of which only its operator knows.
pub(super) const NODE: Ipv4Addr = Ipv4Addr::new(45, 0, 0, 77);

/// What arrived outside.
#[derive(Debug, Default)]
struct Arrived {
    connections: Vec<String>,
    bytes: Vec<Vec<u8>>,
    questions: Vec<String>,
}

/// The world outside.
#[derive(Debug)]
pub(super) struct World {
    pub(super) proxy: SocketAddr,
    pub(super) resolver: SocketAddr,
    arrived: Arc<Mutex<Arrived>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl World {
    pub(super) async fn start() -> Result<Self> {
        let arrived = Arc::<Mutex<Arrived>>::default();
        let hosts = TcpListener::bind("127.0.0.1:0").await?;
        let questions = UdpSocket::bind("127.0.0.1:0").await?;
        let (proxy, resolver) = (hosts.local_addr()?, questions.local_addr()?);
        let (of_hosts, of_names) = (arrived.clone(), arrived.clone());
        let hosts = tokio::spawn(async move {
            while let Ok((stream, _)) = hosts.accept().await {
                tokio::spawn(host(stream, of_hosts.clone()));
            }
        });
        let names = tokio::spawn(async move {
            let mut buffer = [0; 1024];
            let mut moved = false;
            while let Ok((count, from)) = questions.recv_from(&mut buffer).await {
                let Some(answer) = answered(&buffer[..count], &of_names, &mut moved) else {
                    continue;
                };
                let _ = questions.send_to(&answer, from).await;
            }
        });
        Ok(Self { proxy, resolver, arrived, tasks: vec![hosts, names] })
    }

    /// Whether nothing arrived that must not.
    pub(super) fn is_untouched(&self) -> Result<()> {
        let arrived = lock(&self.arrived);
        for to in &arrived.connections {
            ensure!(REACHABLE.contains(&to.as_str()), "a connection to {to}");
        }
        for bytes in &arrived.bytes {
            let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
            let found = NEVER.iter().find(|never| text.contains(*never));
            ensure!(found.is_none(), "{found:?} arrived: {text:?}");
        }
        let allowed = |name: &str| {
            ["api.shoal.test", "http.shoal.test"].contains(&name) || name.ends_with(".wild.test")
        };
        for name in &arrived.questions {
            let asked_only = name.ends_with("question-only.wild.test");
            ensure!(allowed(name) && !asked_only, "a question for {name} left the machine");
        }
        Ok(())
    }
}

fn lock(arrived: &Mutex<Arrived>) -> std::sync::MutexGuard<'_, Arrived> {
    arrived.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads on; false at the end.
async fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> bool {
    matches!(stream.read_buf(bytes).await, Ok(1..))
}

async fn host(mut stream: TcpStream, arrived: Arc<Mutex<Arrived>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if !more(&mut stream, &mut head).await {
            return;
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let to = head.split(' ').nth(1).unwrap_or_default().to_owned();
    lock(&arrived).connections.push(to.clone());
    if to == DEAD {
        let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
        return;
    }
    if stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.is_err() {
        return;
    }
    let mut bytes = Vec::new();
    let mut answered = 0;
    while more(&mut stream, &mut bytes).await {
        let answers = answers(&to, &bytes);
        for answer in answers.iter().skip(answered) {
            if stream.write_all(answer).await.is_err() {
                break;
            }
        }
        answered = answers.len();
    }
    lock(&arrived).bytes.push(bytes);
}

/// All that a host answers to what it has got so far.
fn answers(to: &str, bytes: &[u8]) -> Vec<Vec<u8>> {
    let reached = format!("reached {to}\n");
    if to == RETRIES {
        let greetings = bytes.windows(3).filter(|three| *three == [22, 3, 1]).count();
        return [retry(), reached.into_bytes()].into_iter().take(greetings).collect();
    }
    if !to.ends_with(":80") {
        return vec![reached.into_bytes()];
    }
    let text = String::from_utf8_lossy(bytes);
    let whole = text.rsplit_once("\r\n\r\n").map_or("", |(whole, _)| whole);
    let requests = whole.split("\r\n\r\n").filter(|part| part.contains(" HTTP/1."));
    let moved = |to: &str| {
        format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    };
    let answer = |head: &str| {
        if head.contains("/redirect-to-metadata") {
            moved("http://169.254.169.254/latest/meta-data/")
        } else if head.contains("/redirect-to-name") {
            moved("http://evil.test/")
        } else {
            let length = reached.len();
            format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{reached}").into_bytes()
        }
    };
    requests.map(answer).collect()
}

/// The answer of TLS 1.3 that asks for another greeting.
fn retry() -> Vec<u8> {
    const ASKS_AGAIN: [u8; 32] = [
        0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8,
        0x91, 0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8,
        0x33, 0x9C,
    ];
    let extensions = [0, 43, 0, 2, 3, 4, 0, 51, 0, 2, 0, 23];
    let mut body = [&[3, 3][..], &ASKS_AGAIN, &[32], &[8; 32], &[0x13, 1, 0]].concat();
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let message = [&[2, 0, 0, body.len() as u8][..], &body].concat();
    [&[22, 3, 3, 0, message.len() as u8][..], &message].concat()
}

/// What a name leads to.
#[derive(Default)]
struct Leads {
    /// Another name, of which the addresses are.
    by: Option<&'static str>,
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
}

fn v4<const N: usize>(addresses: [[u8; 4]; N]) -> Leads {
    Leads { v4: addresses.map(Ipv4Addr::from).to_vec(), ..Leads::default() }
}

fn v6(address: &str) -> Leads {
    Leads { v6: address.parse().into_iter().collect(), ..Leads::default() }
}

/// `moved` says whether one of them was asked for before.
fn leads(name: &str, moved: bool) -> Leads {
    match name {
        "api.shoal.test" => v4([[45, 0, 0, 1]]),
        "http.shoal.test" => v4([[45, 0, 0, 2]]),
        "mixed.wild.test" => v4([[10, 0, 0, 3], [45, 0, 0, 3], [127, 0, 0, 1]]),
        "dead.wild.test" => v4([[45, 0, 0, 66], [10, 0, 0, 66]]),
        "rebind.wild.test" if moved => v4([[10, 0, 0, 4]]),
        "rebind.wild.test" => v4([[45, 0, 0, 4]]),
        "retry.wild.test" => v4([[45, 0, 0, 7]]),
        "loopback.wild.test" => v4([[127, 0, 0, 1]]),
        "private.wild.test" => v4([[10, 1, 2, 3], [192, 168, 1, 1]]),
        "shared.wild.test" => v4([[100, 64, 0, 1]]),
        "metadata.wild.test" => v4([[169, 254, 169, 254]]),
        "node.wild.test" => v4([NODE.octets()]),
        "mapped.wild.test" => v6("::ffff:169.254.169.254"),
        "nat64.wild.test" => v6("64:ff9b::a9fe:a9fe"),
        "sixtofour.wild.test" => v6("2002:a9fe:a9fe::1"),
        "teredo.wild.test" => v6("2001:0:a9fe:a9fe::1"),
        "alias.wild.test" => Leads { by: Some("private.other.test"), ..v4([[10, 9, 9, 9]]) },
        "public-alias.wild.test" => Leads { by: Some("alias.other.test"), ..v4([[45, 0, 0, 8]]) },
        _ => v4([[45, 0, 0, 9]]),
    }
}

fn answered(question: &[u8], arrived: &Mutex<Arrived>, moved: &mut bool) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    let mut at = 12;
    while let Some(length @ 1..) = question.get(at).map(|length| usize::from(*length)) {
        name.push(String::from_utf8_lossy(question.get(at + 1..=at + length)?).to_lowercase());
        at += length + 1;
    }
    let name = name.join(".");
    let kind = *question.get(at + 2)?;
    let found = leads(&name, *moved);
    if kind == 1 {
        *moved |= name == "rebind.wild.test";
        lock(arrived).questions.push(name);
    }
    let mut records = Vec::new();
    // The name of the question is at byte 12.
    let mut owner = vec![0xc0, 12];
    if let Some(by) = found.by {
        let mut target = Vec::new();
        for label in by.split('.') {
            target.push(label.len() as u8);
            target.extend_from_slice(label.as_bytes());
        }
        target.push(0);
        records.push(record(&owner, 5, &target));
        owner = target;
    }
    if kind == 1 {
        records.extend(found.v4.iter().map(|address| record(&owner, 1, &address.octets())));
    } else if kind == 28 {
        records.extend(found.v6.iter().map(|address| record(&owner, 28, &address.octets())));
    }
    let mut answer = question.get(..at + 5)?.to_vec();
    answer[2] = 0x85;
    answer[3] = 0x80;
    answer[6..12].fill(0);
    answer[7] = records.len() as u8;
    answer.extend(records.concat());
    Some(answer)
}

/// A record without time to live.
fn record(owner: &[u8], kind: u8, data: &[u8]) -> Vec<u8> {
    [owner, &[0, kind, 0, 1, 0, 0, 0, 0, 0, data.len() as u8], data].concat()
}
