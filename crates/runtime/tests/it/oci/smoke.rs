//! The other OCI programs, where they are installed: the same bundles make the same sandboxes.

use runtime::RuntimeErrorCode;
use runtime::oci::{self, OciConfig, Program};

use super::{OciSubject, able, said, spec};

async fn a_container_lives_and_ends(program: Program) {
    let subject = OciSubject::new(program);
    let Some(runtime) = subject.begin(|_| {}).await else { return };
    let (one, two) = tokio::join!(runtime.launch(spec()), runtime.launch(spec()));
    let (one, two) = (one.expect("launched"), two.expect("launched"));
    let line = "id -u; echo x > /tmp/x; cat /tmp/x; hostname; ls /usr/bin | wc -l";
    assert!(said(&*one, line).await.starts_with("1000\nx\nshoal-"));
    two.freeze().await.expect("frozen");
    two.thaw().await.expect("thawed");
    two.inside().ping().await.expect("it answers");
    two.freeze().await.expect("frozen");
    two.kill().await.expect("killed");
    one.inside().ping().await.expect("it answers");
    subject.end(&*runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crun() {
    a_container_lives_and_ends(Program::Crun).await;
}

/// No distribution packages it, and a build takes minutes: it is tested where it is installed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn youki() {
    match able(&OciSubject::new(Program::Youki).config()) {
        Ok(()) => a_container_lives_and_ends(Program::Youki).await,
        Err(why) => println!("!!!! skipped: {why} !!!!"),
    }
}

#[tokio::test]
async fn oci_program_that_is_not_installed_is_named() {
    let place = std::env::temp_dir().join(format!("oci-none-{}", std::process::id()));
    for program in Program::ALL {
        let mut config = OciConfig::new(program, &place);
        config.path = Some(place.join("nothing"));
        let error = oci::probe(&config).await.expect_err("it is not there");
        assert_eq!(error.code, RuntimeErrorCode::Unsupported);
        let Err(error) = oci::start(config).await else { panic!("started") };
        assert_eq!(error.code, RuntimeErrorCode::Unsupported);
    }
    assert!(!place.exists(), "nothing was made for it");
}
