//! Limits of containers are those of their specs, and reaching one is reported.

use model::Limits;
use runtime::oci::Program;
use runtime::{LaunchSpec, RuntimeErrorCode};
use tokio::time::timeout;

use super::{OciSubject, PATIENCE, over_programs, said, sh, spec};

over_programs! {
    memory_is_limited_and_its_want_is_told
    processes_are_limited
    places_are_limited
}

const HOG: &str = "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'";

async fn memory_is_limited_and_its_want_is_told(program: Program) {
    let subject = OciSubject::new(program);
    let Some(runtime) = subject.begin(|_| {}).await else { return };
    let limits = Limits { memory_mb: 128, ..spec().limits };
    let mut deaths = runtime.events();
    let sandbox = runtime.launch(LaunchSpec { limits, ..spec() }).await.expect("launched");
    let run = runtime::RunLimits { output_bytes: 1 << 16, timeout: PATIENCE };
    match sandbox.inside().run(runtime::ExecSpec::shell(HOG), run).await {
        // A program alone was killed, or had to do with what there is, and the sandbox lives on.
        Ok(ran) => {
            let was_refused = program == Program::Runsc && !ran.exit.success();
            assert!(ran.exit.out_of_memory || was_refused, "{ran:?}");
            sandbox.inside().ping().await.expect("it lives");
        }
        // All of it was.
        Err(error) => {
            assert_eq!(error.code, RuntimeErrorCode::OutOfMemory, "{error:?}");
            let died = timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death");
            assert!(died.out_of_memory, "{died:?}");
        }
    }
    subject.end(&*runtime).await;
}

async fn processes_are_limited(program: Program) {
    let subject = OciSubject::new(program);
    let Some(runtime) = subject.begin(|_| {}).await else { return };
    let limits = Limits { pids: 40, ..spec().limits };
    let sandbox = runtime.launch(LaunchSpec { limits, ..spec() }).await.expect("launched");
    let many = "import os, time\nn = 0\n\
                try:\n\
                \x20 while n < 400:\n\
                \x20   if os.fork() == 0:\n\
                \x20     time.sleep(60); os._exit(0)\n\
                \x20   n += 1\n\
                except OSError: pass\n\
                print(n)";
    let count: u32 =
        said(&*sandbox, &format!("python3 -c '{many}'")).await.trim().parse().expect("a number");
    assert!((20..40).contains(&count), "{count} processes");
    sandbox.inside().ping().await.expect("it lives");
    subject.end(&*runtime).await;
}

async fn places_are_limited(program: Program) {
    let subject = OciSubject::new(program);
    let Some(runtime) = subject.begin(|_| {}).await else { return };
    let limits = Limits { workspace_mb: 16, ..spec().limits };
    let sandbox = runtime.launch(LaunchSpec { limits, ..spec() }).await.expect("launched");
    let filled = sh(&*sandbox, "head -c 40000000 /dev/zero > /workspace/much").await;
    assert!(!filled.exit.success());
    let kept: u64 =
        said(&*sandbox, "stat -c %s /workspace/much").await.trim().parse().expect("a number");
    assert!(kept <= 16 << 20, "{kept} bytes");
    for (place, mode) in [("/workspace", "755 1000"), ("/tmp", "1777 0"), ("/dev/shm", "1777 0")] {
        assert_eq!(
            said(&*sandbox, &format!("stat -c '%a %u' {place}")).await.trim(),
            mode,
            "{place}"
        );
    }
    subject.end(&*runtime).await;
}
