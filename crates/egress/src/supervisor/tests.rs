//! Tests of the supervisor with real processes: this program starts itself again, as the process.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use model::{NetworkPolicy, NetworkRule};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const ENTRY: &str = "supervisor::tests::the_process_itself";

/// Not a test: what the others start.
#[test]
#[ignore = "it is the process that other tests start"]
fn the_process_itself() {
    let control = jail::sys::descriptors::take(3).unwrap();
    crate::process::main(control);
}

fn egress() -> Egress {
    Egress::start(config()).unwrap()
}

fn config() -> EgressConfig {
    let arguments = ["--exact", ENTRY, "--include-ignored", "--nocapture", "--test-threads=1"];
    EgressConfig::new("/proc/self/exe", &arguments)
}

fn sockets() -> (Sockets, SocketAddr, SocketAddr) {
    let connections = TcpListener::bind("127.0.0.1:0").unwrap();
    let names = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (one, two) = (connections.local_addr().unwrap(), names.local_addr().unwrap());
    (Sockets { connections: connections.into(), names: Some(names.into()) }, one, two)
}

fn attachment(number: u128, sockets: Option<Sockets>, rule: &str) -> Attachment {
    Attachment {
        sandbox: InstanceId::from_u128(number),
        key: None,
        policy: NetworkPolicy::Allow(vec![rule.parse::<NetworkRule>().unwrap()]).into(),
        sockets,
        secrets: Vec::new(),
        authority: None,
    }
}

/// A sandbox of a key, with a boundary secret.
fn with_secret(number: u128, key: u128, sockets: Sockets) -> Attachment {
    let secret = BoundarySecret {
        placeholder: "placeholder".into(),
        value: "value".to_owned().into(),
        header: "authorization".into(),
        hosts: vec![HostName::parse("a.test").unwrap()],
        secret: "s".into(),
    };
    Attachment {
        key: Some(KeyId::from_u128(key)),
        secrets: vec![secret],
        authority: Some(Arc::new(Authority::new().unwrap())),
        ..attachment(number, Some(sockets), "a.test:443")
    }
}

/// The code with which the name is answered: 0 is an address, 3 is that there is no such name.
fn ask(names: SocketAddr) -> u8 {
    answer_to(&asked(names))
}

fn asked(names: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.send_to(b"\xab\xcd\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01", names).unwrap();
    client
}

fn answer_to(client: &UdpSocket) -> u8 {
    let mut answer = [0; 512];
    client.recv(&mut answer).unwrap();
    answer[3] & 15
}

fn children() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let lists = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")));
    let lists = lists.map(Result::unwrap_or_default).collect::<Vec<_>>().concat();
    lists.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_sandbox_is_served_changed_and_released_by_a_real_process() {
    let egress = egress();
    let (own, connections, names) = sockets();
    egress.attach(attachment(1, Some(own), "a.test")).await.unwrap();
    assert_eq!(ask(names), 0);
    // Tests run in a thread of their own, and powers are given up by thread.
    let tasks = std::fs::read_dir(format!("/proc/{}/task", children()[0])).unwrap();
    let statuses = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")));
    let statuses: Vec<String> = statuses.map(Result::unwrap).collect();
    let confined = ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"];
    let is_confined = |status: &String| confined.iter().all(|line| status.contains(line));
    assert!(statuses.iter().any(is_confined), "{statuses:?}");
    let sandbox = InstanceId::from_u128(1);
    let other = NetworkPolicy::Allow(vec!["b.test".parse().unwrap()]);
    egress.change(sandbox, None, other).await.unwrap();
    assert_eq!(ask(names), 3);
    egress.attach(attachment(1, None, "a.test")).await.unwrap();
    assert_eq!(ask(names), 0);
    let released = egress.release(sandbox).await.expect("the sockets");
    let listener = TcpListener::from(released.connections);
    assert_eq!(listener.local_addr().unwrap(), connections);
    let gone = egress.change(sandbox, None, NetworkPolicy::None).await;
    assert_eq!(gone, Err(EgressError::NotAttached));
    let Reported { event, .. } = egress.events().recv().await.unwrap();
    assert_eq!((event.sandbox, event.kind), (sandbox, crate::EventKind::Name));
}

#[tokio::test]
async fn events_of_a_sandbox_that_is_forgotten_come_before_the_answer() {
    let egress = egress();
    let mut events = egress.events();
    let (own, _, names) = sockets();
    egress.attach(attachment(1, Some(own), "b.test")).await.unwrap();
    let before = egress.reported();
    for _ in 0..3 {
        assert_eq!(ask(names), 3, "it is refused");
    }
    egress.forget(InstanceId::from_u128(1)).await;
    let last = egress.reported();
    for number in before + 1..=before + 3 {
        assert_eq!(events.try_recv().unwrap().number, number);
    }
    assert_eq!((last, egress.reported()), (before + 3, last));
    assert!(events.try_recv().is_err());
}

#[tokio::test]
async fn a_process_that_is_killed_is_reported_and_starts_again() {
    let egress = egress();
    let mut lost = egress.lost();
    let (own, _, names) = sockets();
    egress.attach(attachment(1, Some(own), "a.test")).await.unwrap();
    assert_eq!(ask(names), 0);
    let [process] = children()[..] else { panic!("{:?}", children()) };
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    let reported = timeout(PATIENCE, lost.recv()).await.unwrap().unwrap();
    assert_eq!(reported, [InstanceId::from_u128(1)]);
    let (own, _, names) = sockets();
    egress.attach(attachment(1, Some(own), "a.test")).await.unwrap();
    assert_eq!(ask(names), 0);
    assert_eq!(egress.counts().deaths, 1);
}

#[tokio::test]
async fn an_attachment_that_is_given_up_leaves_nothing() {
    let egress = egress();
    let (own, connections, _) = sockets();
    {
        let attaching = egress.attach(attachment(1, Some(own), "a.test"));
        tokio::pin!(attaching);
        // Polled once: the question is on its way.
        let polled = timeout(Duration::ZERO, &mut attaching).await;
        assert!(polled.is_err());
    }
    let (own, _, names) = sockets();
    egress.attach(attachment(2, Some(own), "a.test")).await.unwrap();
    assert_eq!(ask(names), 0);
    assert_eq!(egress.counts().sandboxes, 1);
    // The second was answered after the first, which is forgotten by now: its listener is closed.
    assert!(std::net::TcpStream::connect(connections).is_err());
}

fn kill(process: i32, signal: Signal) {
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn a_process_of_a_key_whose_sandboxes_ended_with_it_does_not_stay() {
    let egress = egress();
    let mut lost = egress.lost();
    let (own, _, _) = sockets();
    let attachment = with_secret(1, 7, own);
    egress.attach(attachment).await.unwrap();
    assert_eq!(egress.counts().processes, 2);
    for process in children() {
        kill(process, Signal::KILL);
    }
    let reported = timeout(PATIENCE, lost.recv()).await.unwrap().unwrap();
    assert_eq!(reported, [InstanceId::from_u128(1)]);
    egress.forget(InstanceId::from_u128(1)).await;
    let now = tokio::time::Instant::now();
    egress.placement.close_idle(now);
    assert_eq!(egress.counts().processes, 2, "it lingers");
    egress.placement.close_idle(now + placement::LINGER);
    assert_eq!(egress.counts().processes, 1);
}

#[tokio::test]
async fn a_key_too_many_is_refused_until_another_has_no_sandbox() {
    let egress = Egress::start(EgressConfig { boundary_keys: 2, ..config() }).unwrap();
    let full = Err(EgressError::TooManyKeys { most: 2 });
    let attach = async |number, key| egress.attach(with_secret(number, key, sockets().0)).await;
    let reserve = |key| egress.reserve(KeyId::from_u128(key));
    attach(1, 1).await.unwrap();
    attach(2, 2).await.unwrap();
    assert_eq!(attach(3, 3).await, full);
    assert_eq!(reserve(3).map(drop), full);
    attach(4, 1).await.expect("its key has a process");
    assert_eq!((egress.counts().processes, egress.counts().sandboxes), (3, 3));
    // Its process waits for the next sandbox of its key, and gives way to another key.
    egress.forget(InstanceId::from_u128(2)).await;
    let room = reserve(3).unwrap();
    assert_eq!(attach(2, 2).await, full, "the room is kept");
    attach(3, 3).await.unwrap();
    drop(room);
    assert_eq!(egress.counts().processes, 3);
    assert_eq!(attach(2, 2).await, full);
    // A process for which a sandbox is announced does not give way.
    egress.forget(InstanceId::from_u128(3)).await;
    let room = reserve(3).unwrap();
    assert_eq!(attach(2, 2).await, full);
    drop(room);
    attach(2, 2).await.unwrap();
    assert_eq!(egress.counts().processes, 3);
}

#[tokio::test]
async fn the_limits_of_a_key_are_divided_among_its_processes() {
    let egress = egress();
    let key = KeyId::from_u128(1);
    let parts = || egress.placement.parts(key);
    // A warm sandbox counts for its key from its claim on.
    egress.attach(attachment(1, Some(sockets().0), "a.test")).await.unwrap();
    assert_eq!(parts(), 1);
    let policy = || NetworkPolicy::Allow(vec!["a.test".parse().unwrap()]);
    egress.count_for(InstanceId::from_u128(1), Some(key), policy()).unwrap();
    egress.attach(with_secret(2, 1, sockets().0)).await.unwrap();
    assert_eq!(parts(), 2);
    let other = Some(KeyId::from_u128(2));
    egress.change(InstanceId::from_u128(1), other, policy()).await.unwrap();
    assert_eq!(parts(), 1);
    egress.change(InstanceId::from_u128(1), Some(key), policy()).await.unwrap();
    assert_eq!(parts(), 2);
    egress.forget(InstanceId::from_u128(2)).await;
    assert_eq!(parts(), 1);
}

async fn stop(process: i32) {
    kill(process, Signal::STOP);
    // Each of its threads stops when it next runs.
    let stopped = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        status.contains("State:\tT")
    };
    let tasks = || std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    while !tasks().all(stopped) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The process finds both at the same time, and in any order.
#[tokio::test]
async fn a_question_after_a_change_that_was_not_waited_for_is_judged_by_it() {
    let egress = egress();
    let (own, _, names) = sockets();
    let sandbox = InstanceId::from_u128(1);
    egress.attach(attachment(1, Some(own), "a.test")).await.unwrap();
    let [process] = children()[..] else { panic!("{:?}", children()) };
    for _ in 0..20 {
        let open = NetworkPolicy::Allow(vec!["a.test".parse().unwrap()]);
        egress.change(sandbox, None, open).await.unwrap();
        stop(process).await;
        egress.change_ahead(sandbox, None, NetworkPolicy::None).await.unwrap();
        let question = asked(names);
        kill(process, Signal::CONT);
        assert_eq!(answer_to(&question), 3);
    }
}

#[tokio::test]
async fn a_process_that_does_not_answer_is_replaced() {
    let egress = egress();
    let mut lost = egress.lost();
    let (own, _, _) = sockets();
    egress.attach(attachment(1, Some(own), "a.test")).await.unwrap();
    let [process] = children()[..] else { panic!("{:?}", children()) };
    stop(process).await;
    let sandbox = InstanceId::from_u128(1);
    // Time that nothing else is waited for passes at once.
    tokio::time::pause();
    assert!(egress.change(sandbox, None, NetworkPolicy::None).await.is_err());
    let reported = lost.recv().await.unwrap();
    tokio::time::resume();
    assert_eq!(reported, [sandbox]);
    let (own, _, names) = sockets();
    egress.attach(attachment(1, Some(own), "a.test")).await.unwrap();
    assert_eq!(ask(names), 0);
}
