//! A process that commits without pause is killed at any moment: every acknowledged commit is
//! stored, and none is stored by half.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use store::conformance::fixtures::{document, ended, event, sandbox, session, whole};
use store::sqlite::SqliteStore;
use store::{DocumentQuery, EventQuery, Loaded, Retention, Store as _};

use crate::child;
use crate::temp_dir::TempDir;

const ROUNDS: u64 = 20;

/// A child that gets this far was not killed, and ends by itself.
const MOST_COMMITS: u64 = 1_000_000;

#[test]
fn child_that_commits() {
    let Some(directory) = child::directory() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let store = SqliteStore::open(&directory, Retention::default()).expect("opened");
        let first = store.load().await.expect("loaded").last_event + 1;
        let mut out = std::io::stdout();
        for number in first..first + MOST_COMMITS {
            store.commit(&whole(number)).await.expect("written");
            writeln!(out, "\nwritten {number}").expect("the parent reads");
        }
    });
}

#[tokio::test]
async fn acknowledged_commits_survive_a_kill_at_any_moment() {
    let place = TempDir::new();
    let mut acknowledged_last = 0;
    for round in 0..ROUNDS {
        // From at once to after the first restart of the log.
        let acknowledged = [0, 1, 7, 40, 300, 2_500][(round % 6) as usize];
        let (program, arguments) = child::command("crash::child_that_commits");
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = child::with_directory(&mut command, place.path()).spawn().expect("started");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut seen = 0;
        let mut numbers = lines.map_while(Result::ok).filter_map(|line| {
            line.strip_prefix("written ").and_then(|number| number.parse::<u64>().ok())
        });
        while seen < acknowledged {
            acknowledged_last = numbers.next().expect("the child goes on until it is killed");
            seen += 1;
        }
        std::thread::sleep(Duration::from_micros(round * 137 % 3_000));
        child.kill().expect("killed");
        child.wait().expect("gone");
        // Acknowledged before it died, and not read yet.
        acknowledged_last = numbers.last().unwrap_or(acknowledged_last);
        acknowledged_last = acknowledged_last.max(check(&place, acknowledged_last).await);
    }
    assert!(acknowledged_last > 5_000, "there was something to lose: {acknowledged_last}");
}

/// What is stored is complete, and not older than what the child got acknowledged.
async fn check(place: &TempDir, acknowledged_last: u64) -> u64 {
    let store = SqliteStore::open(place.path(), Retention::default()).expect("opened");
    let Loaded { journal, last_event } = store.load().await.expect("loaded");
    assert!(
        last_event >= acknowledged_last,
        "{acknowledged_last} was acknowledged, {last_event} is stored"
    );
    if last_event > 0 {
        let n = last_event as u32;
        assert_eq!(journal.sandboxes, [sandbox(1, n)]);
        assert_eq!(journal.sessions, [session(1, n)]);
        assert_eq!(journal.ended.last(), Some(&ended(2, n)));
        let page = store.events(&EventQuery::after(0, u32::MAX)).await.expect("events");
        assert!(page.events.iter().enumerate().all(|(at, one)| one.number == at as u64 + 1));
        assert_eq!(page.events.last(), Some(&event(last_event, 1)));
        let documents = store.documents(&DocumentQuery::default()).await;
        assert_eq!(documents, Ok(vec![document(last_event)]));
    }
    last_event
}
