//! Roots of containers: of the host, of directories and of images; what is shown of the host
//! besides; and that the host sees nothing of it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use model::{ImageId, Mount};
use runtime::oci::Program;
use runtime::{LaunchSpec, Root, RuntimeErrorCode};

use super::{OciSubject, over_programs, said, sh, spec};

over_programs! {
    directories_and_images_are_roots
    mounts_are_seen_where_they_belong
    what_there_is_not_is_refused
}

/// A tree in which a shell runs. Whether there is one.
fn lay_out_programs(at: &Path) -> bool {
    let Ok(busybox) = fs::read("/usr/bin/busybox") else {
        runtime::conformance::skip("no /usr/bin/busybox");
        return false;
    };
    fs::create_dir_all(at.join("bin")).expect("made");
    fs::write(at.join("bin/busybox"), busybox).expect("written");
    fs::set_permissions(at.join("bin/busybox"), fs::Permissions::from_mode(0o755)).expect("set");
    for name in ["sh", "cat", "ls", "id", "touch"] {
        symlink("busybox", at.join("bin").join(name)).expect("linked");
    }
    true
}

async fn directories_and_images_are_roots(program: Program) {
    let subject = OciSubject::new(program);
    let place = subject.place.clone();
    if !lay_out_programs(&place.join("roots/small")) {
        return;
    }
    fs::create_dir_all(place.join("roots/small/etc")).expect("made");
    fs::write(place.join("roots/small/etc/passwd"), "root:x:0:0::/:/bin/sh\n").expect("written");
    fs::write(place.join("roots/small/mine"), "yes\n").expect("written");
    // Where we have places of our own, theirs are of no use, whatever they are.
    symlink("/etc", place.join("roots/small/workspace")).expect("linked");
    let (low, high) = ("a".repeat(64), "b".repeat(64));
    let image = ImageId::from_bytes([3; 32]);
    let layers = place.join("store/layers");
    assert!(lay_out_programs(&layers.join(&low)));
    fs::create_dir_all(layers.join(&high)).expect("made");
    fs::write(layers.join(&low).join("both"), "low\n").expect("written");
    fs::write(layers.join(&high).join("both"), "high\n").expect("written");
    let about = place.join(format!("store/images/{image}"));
    fs::create_dir_all(&about).expect("made");
    fs::write(about.join("layers"), format!("{low}\n{high}\n")).expect("written");
    let begun = subject.begin(|config| {
        config.directories = vec![place.join("roots")];
        config.images = Some(place.join("store"));
    });
    let Some(runtime) = begun.await else { return };

    let mounts_before = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let of = |root| LaunchSpec { root, ..spec() };
    let small = runtime.launch(of(Root::Directory("small".to_owned()))).await.expect("launched");
    assert_eq!(said(&*small, "cat /mine; id -un").await, "yes\nagent\n");
    assert_eq!(said(&*small, "touch /workspace/x; ls /workspace").await, "x\n");
    for place in ["/x", "/bin/x", "/etc/x", "/dev/x", "/run/x", "/.shoal/x"] {
        let tried = sh(&*small, &format!("touch {place}")).await;
        assert!(!tried.exit.success(), "{place} can be written to");
    }
    for root in [Root::Image(image), Root::Named { name: "x".to_owned(), stored: Some(image) }] {
        let layered = runtime.launch(of(root)).await.expect("launched");
        assert_eq!(said(&*layered, "cat /both").await, "high\n");
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert_eq!(mounts, mounts_before, "the host sees nothing of it");
    assert!(!fs::exists(place.join("roots/small/tmp")).expect("seen"), "theirs stays as it was");
    subject.end(&*runtime).await;
}

async fn mounts_are_seen_where_they_belong(program: Program) {
    let subject = OciSubject::new(program);
    let place = subject.place.clone();
    fs::create_dir_all(place.join("shown/deep")).expect("made");
    fs::write(place.join("shown/file"), "from the host\n").expect("written");
    let Some(runtime) = subject.begin(|_| {}).await else { return };
    let mount = |host: &str, path: &str, read_only| Mount {
        host_path: place.join(host).to_str().expect("text").to_owned(),
        path: path.to_owned(),
        read_only,
        docker_host_path: None,
    };
    std::os::unix::fs::chown(place.join("shown/deep"), Some(1000), Some(1000)).expect("given");
    let mounts = vec![
        mount("shown", "/data", true),
        mount("shown/deep", "/usr/share/of-the-host", false),
        mount("shown/file", "/opt/one/file", true),
    ];
    let sandbox = runtime.launch(LaunchSpec { mounts, ..spec() }).await.expect("launched");
    assert_eq!(said(&*sandbox, "cat /data/file /opt/one/file").await, "from the host\n".repeat(2));
    assert!(!sh(&*sandbox, "echo x > /data/new").await.exit.success());
    assert!(!sh(&*sandbox, "echo x > /opt/one/file").await.exit.success());
    said(&*sandbox, "echo back > /usr/share/of-the-host/new").await;
    let written = fs::read_to_string(place.join("shown/deep/new")).expect("it came out");
    assert_eq!(written, "back\n");
    assert!(said(&*sandbox, "ls /usr/share /usr/bin").await.contains("env"), "the rest is there");
    let missing = LaunchSpec { mounts: vec![mount("not-there", "/data", true)], ..spec() };
    assert!(runtime.launch(missing).await.is_err());
    subject.end(&*runtime).await;
}

async fn what_there_is_not_is_refused(program: Program) {
    let subject = OciSubject::new(program);
    let Some(runtime) = subject.begin(|_| {}).await else { return };
    for root in [
        Root::Directory("missing".to_owned()),
        Root::Directory("../../etc".to_owned()),
        Root::Image(ImageId::from_bytes([9; 32])),
        Root::Named { name: "debian:12".to_owned(), stored: None },
    ] {
        let refused = runtime.launch(LaunchSpec { root: root.clone(), ..spec() }).await;
        let Err(error) = refused else { panic!("{root:?} was launched") };
        assert_eq!(error.code, RuntimeErrorCode::RootUnknown, "{root:?}: {error:?}");
    }
    subject.end(&*runtime).await;
}
