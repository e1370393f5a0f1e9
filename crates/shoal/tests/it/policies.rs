//! As many sandboxes with a policy as one machine is meant to hold: each is attached, a sample of them
//! reaches a server, and descriptors and memory stay within what is promised.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::storm::node::Server;

/// If `POLICY_SANDBOXES` does not say; `scripts/long.sh` says 5,000.
const SANDBOXES: usize = 60;

/// How many of them connect.
const SAMPLE: usize = 12;

/// How long all of them may take to become warm.
const PATIENCE: Duration = Duration::from_mins(10);

/// Descriptors of an egress process for each sandbox.
const DESCRIPTORS_EACH: usize = 2;

/// Descriptors of the server for each sandbox: its processes, not its policy.
const DESCRIPTORS_OF_SERVER_EACH: usize = 4;
const DESCRIPTORS_BESIDE: usize = 256;

/// A debug build, with everything that an idle sandbox has. A release build takes half of it.
const BYTES_EACH_AT_MOST: u64 = 2_500_000;

/// An address of loopback that nothing else uses.
const ADDRESS: &str = "127.77.2.1";

#[test]
fn thousands_of_sandboxes_with_policies() {
    let count = std::env::var("POLICY_SANDBOXES").ok().and_then(|text| text.parse().ok());
    let count: usize = count.unwrap_or(SANDBOXES);
    let host = TcpListener::bind((ADDRESS, 0)).unwrap();
    let address = host.local_addr().unwrap();
    let before = available_bytes();
    let Some(mut server) = Server::start("policies", &config(count, address)) else { return };
    // Whatever it says is said back.
    std::thread::spawn(move || {
        for connection in host.incoming() {
            let mut connection = connection.unwrap();
            let mut said = [0; 5];
            if connection.read_exact(&mut said).is_ok() {
                let _ = connection.write_all(&said);
            }
        }
    });
    let began = Instant::now();
    while idle(&server) < count {
        assert!(began.elapsed() < PATIENCE, "{} of {count}: {}", idle(&server), server.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("{count} are warm after {:.1} s", began.elapsed().as_secs_f64());
    let each = before.saturating_sub(available_bytes()) / count as u64;
    println!("{each} bytes for each, all in all");
    assert!(each <= BYTES_EACH_AT_MOST + (256 << 20) / count as u64, "{each} bytes for each");
    check_descriptors(&server, count);
    let boxes: Vec<Value> = (0..SAMPLE).map(|_| hand_out(&server)).collect();
    for one in &boxes {
        reaches(&server, one, address);
    }
    check_descriptors(&server, count);
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert_eq!(server.leftovers(), Vec::<std::path::PathBuf>::new());
}

fn config(count: usize, address: SocketAddr) -> String {
    let port = address.port();
    format!(
        "[node]\nmax_live = {live}\nmax_sandboxes = {live}\n\
         [egress]\nhosts = [\"host.shoal.test={ADDRESS}\"]\n\
         [[templates]]\nname = \"default\"\n\
         network = {{ allow = [\"host.shoal.test:{port}\", \"{ADDRESS}:{port}\"] }}\n\
         limits = {{ memory_mb = 64 }}\n\
         pool = {{ pool_size = {count}, max_overflow = 0 }}\n",
        live = count + 32
    )
}

fn idle(server: &Server) -> usize {
    let (status, stats) = server.ask("GET", "/v1/stats", "");
    assert_eq!(status, 200, "{stats}");
    stats["pools"][0]["idle"].as_u64().unwrap_or_default() as usize
}

fn hand_out(server: &Server) -> Value {
    let (status, made) = server.ask("POST", "/v1/sandboxes", r#"{"template":"default"}"#);
    assert!(status < 300, "{made}");
    made
}

/// The host, and nothing else.
fn reaches(server: &Server, one: &Value, address: SocketAddr) {
    let program = format!(
        "import socket\n\
         with socket.create_connection(('host.shoal.test', {port}), 60) as one:\n\
         \x20 one.sendall(b'hello'); print(one.recv(5).decode())\n\
         try: socket.create_connection(('other.shoal.test', {port}), 60)\n\
         except socket.gaierror: print('no such name')\n",
        port = address.port()
    );
    let body = json!({ "argv": ["python3", "-c", program], "timeout_ms": 120_000 });
    let path = format!("/v1/sandboxes/{}/exec", one["id"].as_str().unwrap());
    let (status, ran) = server.ask("POST", &path, &body.to_string());
    assert_eq!((status, &ran["stdout"]), (200, &json!("hello\nno such name\n")), "{ran}");
}

fn check_descriptors(server: &Server, count: usize) {
    let of_server = descriptors_of(server.pid());
    let processes = egress_processes(server.pid());
    let of_egress: usize = processes.iter().map(|pid| descriptors_of(*pid)).sum();
    println!("descriptors: {of_server} of the server, {of_egress} of {processes:?}");
    let most = |each: usize| count * each + DESCRIPTORS_BESIDE;
    assert!(of_server <= most(DESCRIPTORS_OF_SERVER_EACH), "{of_server} of the server");
    // Fewer would mean that some sandbox is not attached.
    assert!(of_egress >= count * DESCRIPTORS_EACH, "{of_egress} of the egress processes");
    assert!(of_egress <= most(DESCRIPTORS_EACH), "{of_egress} of the egress processes");
    assert_eq!(processes.len(), count.div_ceil(2500), "{processes:?}");
}

fn egress_processes(server: u32) -> Vec<u32> {
    let is_one = |pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.windows(14).any(|some| some == b"egress-process")
    };
    let tasks = std::fs::read_dir(format!("/proc/{server}/task")).unwrap().flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));
    let children: Vec<String> = children.flatten().collect();
    let pids = children.iter().flat_map(|line| line.split_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).filter(is_one).collect()
}

fn descriptors_of(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn available_bytes() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
