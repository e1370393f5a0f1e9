//! Restarts of launchers that the test scripts.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use tokio::sync::mpsc;

use super::*;
use crate::deaths::Deaths;
use crate::error::RuntimeError;
use crate::native::launcher_restart::Starter;

const PATIENCE: Duration = Duration::from_secs(10);

/// What the next launcher does.
#[derive(Debug, Clone, Copy)]
enum Next {
    ComesUp,
    SaysNothing,
    CannotStart,
}

/// What comes after the first launcher.
struct Later {
    /// A launcher starts only after the test has said what it does.
    orders: Sender<Next>,
    /// The launchers that were started, with the names of their runs.
    started: mpsc::UnboundedReceiver<(String, Option<Script>)>,
}

impl Later {
    /// The next launcher does this.
    async fn next(&mut self, order: Next) -> (String, Option<Script>) {
        self.orders.send(order).unwrap();
        timeout(PATIENCE, self.started.recv()).await.expect("in time").expect("a launcher")
    }
}

/// A runtime whose first launcher is up.
async fn restarting() -> (Arc<Native>, Script, Later) {
    let (report, started) = mpsc::unbounded_channel();
    let (orders, next) = channel();
    let next = Mutex::new(next);
    let handle = tokio::runtime::Handle::current();
    let start: Starter = Arc::new(move |config: NativeConfig| {
        let _inside = handle.enter();
        let run = config.run.clone();
        match next.lock().unwrap().recv_timeout(PATIENCE) {
            Ok(Next::CannotStart) | Err(_) => {
                report.send((run, None)).unwrap();
                let error = std::io::Error::from_raw_os_error(11);
                Err(RuntimeError::system("start the launcher", &error))
            }
            Ok(alive @ (Next::ComesUp | Next::SaysNothing)) => {
                let (process, script) = silent(config);
                if matches!(alive, Next::ComesUp) {
                    script.say(&FromLauncher::Up { features: FEATURES });
                }
                report.send((run, Some(script))).unwrap();
                Ok(process)
            }
        }
    });
    let config = NativeConfig {
        restart: true,
        run: "first".to_owned(),
        ..NativeConfig::new(std::env::temp_dir())
    };
    let (process, script) = scripted(config);
    let native = Native::begin(process, start).await.unwrap();
    (Arc::new(native), script, Later { orders, started })
}

async fn death(deaths: &mut Deaths) -> Option<Died> {
    timeout(PATIENCE, deaths.next()).await.expect("in time")
}

/// A sandbox that this launcher made.
async fn made(native: &Arc<Native>, script: &mut Script, n: u128) -> Arc<dyn Sandbox> {
    let launching = launch(native, n);
    let (ticket, _, connection) = timeout(PATIENCE, script.launch()).await.unwrap();
    script.launched(ticket);
    guest_says(&connection, &Reply::Ready { version: VERSION });
    let sandbox = timeout(PATIENCE, launching).await.unwrap().unwrap().unwrap();
    // Closed, it would end.
    std::mem::forget(connection);
    sandbox
}

async fn until_launcher_is(native: &Native, other_than: u32) {
    let changed = async {
        while native.launcher_pid() == other_than {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, changed).await.expect("another launcher is up");
}

/// A death of this instance that names its launcher.
fn with_launcher(died: Option<Died>, n: u128, pid: u32) -> bool {
    let died = died.expect("it died");
    let cause = died.cause();
    assert!(cause.starts_with("its launcher "), "{cause}");
    assert!(!cause.contains("pid"), "callers do not see processes of the host: {cause}");
    assert_eq!(died.launcher.map(|exit| exit.pid.cast_unsigned()), Some(pid));
    (died.instance, died.status, died.out_of_memory) == (InstanceId::from_u128(n), None, false)
}

/// Why nothing can be launched now.
async fn refused(native: &Native) -> RuntimeError {
    native.launch(spec(99)).await.err().expect("there is no launcher")
}

#[tokio::test]
async fn a_lost_launcher_is_followed_by_another_that_knows_nothing_of_its_sandboxes() {
    let (native, mut script, mut later) = restarting().await;
    let mut deaths = native.events();
    let old = made(&native, &mut script, 1).await;
    let waiting = launch(&native, 2);
    script.launch().await;
    let first_pid = native.launcher_pid();
    drop(script);
    assert_eq!(code(waiting).await, RuntimeErrorCode::LauncherLost);
    let meanwhile = refused(&native).await;
    assert_eq!(meanwhile.code, RuntimeErrorCode::LauncherLost);
    assert!(meanwhile.retryable() && meanwhile.cause.contains("another one is being started"));
    assert!(with_launcher(death(&mut deaths).await, 1, first_pid));

    let (second, script) = later.next(Next::ComesUp).await;
    let mut script = script.unwrap();
    until_launcher_is(&native, first_pid).await;
    assert_ne!(second, "first");
    assert_eq!(
        deaths.try_next(),
        None,
        "it is reported once, and the launch that failed is no death"
    );
    assert_eq!(old.inside().ping().await.unwrap_err().code, RuntimeErrorCode::SandboxGone);
    old.kill().await.unwrap();
    let settings = model::ClaimSettings::default();
    let claim = old.claim(&settings, Some(WorkspaceId::from_u128(7)));
    assert_eq!(claim.await.unwrap_err().code, RuntimeErrorCode::SandboxGone);
    assert!(native.sandbox(InstanceId::from_u128(1)).is_none());

    // The first that the new one hears of is a launch, under an id that the old one had.
    let new = made(&native, &mut script, 1).await;
    assert!(old.ended().is_some() && new.ended().is_none());
    let second_pid = native.launcher_pid();
    drop(script);
    let died = death(&mut deaths).await;
    assert!(with_launcher(died, 1, second_pid), "the same subscription goes on");
    let (third, _script) = later.next(Next::ComesUp).await;
    assert!(third != "first" && third != second, "{third}");
    until_launcher_is(&native, second_pid).await;
    timeout(PATIENCE, native.shutdown()).await.expect("in time").expect("shut down");
    assert_eq!(death(&mut deaths).await, None);
}

#[tokio::test]
async fn launcher_restarts_that_fail_are_repeated_and_reported() {
    let (native, script, mut later) = restarting().await;
    let first_pid = native.launcher_pid();
    drop(script);
    let (second, none) = later.next(Next::CannotStart).await;
    assert!(none.is_none());
    let reported = async {
        while !refused(&native).await.cause.contains("failed so far: system: start the launcher") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, reported).await.expect("the reason is reported");
    assert_eq!(refused(&native).await.code, RuntimeErrorCode::LauncherLost);
    // It ends before it has said anything.
    let (third, silent) = later.next(Next::SaysNothing).await;
    drop(silent);
    let (fourth, script) = later.next(Next::ComesUp).await;
    assert!(second != third && third != fourth && second != fourth);
    until_launcher_is(&native, first_pid).await;
    made(&native, &mut script.unwrap(), 1).await;
}

/// Ends a runtime by a shutdown or by dropping it; done when nothing is left.
async fn end(native: Arc<Native>, drops: bool) {
    let mut deaths = native.events();
    if !drops {
        timeout(PATIENCE, native.shutdown()).await.expect("in time").expect("shut down");
        assert_eq!(refused(&native).await.code, RuntimeErrorCode::ShuttingDown);
    }
    let launchers = Arc::downgrade(&native.launchers);
    drop(native);
    assert_eq!(death(&mut deaths).await, None);
    let gone = async {
        while launchers.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("no task goes on restarting");
}

/// Whether the host's end of a launcher's socket is closed.
fn is_closed(script: &Script) -> bool {
    match jail::packet::receive(&script.socket, &mut [0; 64]) {
        Ok(packet) => packet.bytes == 0,
        // Its messages were never read.
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[tokio::test]
async fn shutdown_during_a_launcher_restart_ends_it() {
    for drops in [false, true] {
        // When it is lost, or in the pause.
        let (native, script, later) = restarting().await;
        drop((script, later.orders));
        end(native, drops).await;

        // While a launcher starts, which it does not finish.
        let (native, script, mut later) = restarting().await;
        drop(script);
        let (_, script) = later.next(Next::SaysNothing).await;
        end(native, drops).await;
        assert!(is_closed(&script.unwrap()), "which ends it");

        // Between two attempts.
        let (native, script, mut later) = restarting().await;
        drop(script);
        later.next(Next::CannotStart).await;
        later.next(Next::CannotStart).await;
        drop(later.orders);
        end(native, drops).await;

        // When the next one is about to be used.
        let (native, script, mut later) = restarting().await;
        drop(script);
        let (_, script) = later.next(Next::ComesUp).await;
        end(native, drops).await;
        assert!(is_closed(&script.unwrap()), "which ends it");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_is_followed_by_no_launcher() {
    for drops in [false, true] {
        let (native, _script, mut later) = restarting().await;
        drop(later.orders);
        // So long that the next one would come without a pause.
        tokio::time::advance(Duration::from_hours(1)).await;
        end(native, drops).await;
        assert!(later.started.recv().await.is_none(), "none was started");
    }
}
