//! Roots as far as nothing is mounted: what is found, what is refused, and what is laid out.

use std::os::unix::fs::{MetadataExt as _, symlink};

use model::{InstanceId, Template, TemplateName};

use super::*;

fn place(name: &str) -> PathBuf {
    let place = std::env::temp_dir().join(format!("oci-roots-{}-{name}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    place
}

fn errno(result: io::Result<RootSource>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

const NOENT: Option<i32> = Some(2);

#[test]
fn root_directories_are_beneath_the_configured_ones_and_never_behind_a_link() {
    let place = place("directories");
    fs::create_dir_all(place.join("roots/debian/usr")).unwrap();
    fs::create_dir(place.join("secret")).unwrap();
    symlink("../secret", place.join("roots/link")).unwrap();
    let above = [place.join("missing"), place.join("roots")];
    let found = directory(&above, "debian").unwrap();
    assert_eq!(found.layers, [place.canonicalize().unwrap().join("roots/debian")]);
    assert!(found.identity.is_some());
    assert!(directory(&above, "debian/usr").is_ok());
    for name in ["link", "../secret", "debian/../../secret", ".", "", "/debian", "none", "debian/"]
    {
        assert_eq!(errno(directory(&above, name)), NOENT, "{name}");
    }
    fs::remove_dir_all(place).unwrap();
}

#[test]
fn root_images_are_complete_and_locked_while_they_are_used() {
    let place = place("images");
    let image = ImageId::from_bytes([7; 32]);
    let list = place.join(format!("images/{image}/layers"));
    fs::create_dir_all(list.parent().unwrap()).unwrap();
    assert_eq!(errno(layers_of(Some(&place), image)), NOENT);
    assert_eq!(errno(layers_of(None, image)), NOENT);
    let digest = "ab".repeat(32);
    for (text, layers) in [
        (format!("{digest}\n"), Some(1)),
        (format!("{digest}\n{digest}\n"), Some(2)),
        (String::new(), None),
        ("../../../etc\n".to_owned(), None),
        (format!("{digest}\n").repeat(65), None),
    ] {
        fs::write(&list, &text).unwrap();
        let found = layers_of(Some(&place), image);
        assert_eq!(found.as_ref().ok().map(|found| found.layers.len()), layers, "{text}");
        let other = File::open(&list).unwrap();
        let free = flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok();
        assert_eq!(free, layers.is_none(), "held for as long as it is used");
    }
    fs::remove_dir_all(place).unwrap();
}

#[test]
fn an_image_that_no_source_has_is_refused_by_its_name() {
    let named = |stored| Root::Named { name: "debian:12".to_owned(), stored };
    assert!(check(&named(Some(ImageId::from_bytes([7; 32])))).is_ok());
    let error = check(&named(None)).unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::RootUnknown);
    assert!(error.cause.contains("debian:12"), "{error:?}");
}

#[test]
fn mount_points_lie_in_the_top_layer() {
    let top = place("top");
    let template = Template::named(TemplateName::new("default").unwrap());
    let mut spec = LaunchSpec::of(&template, InstanceId::from_u128(1));
    let mount = |host_path: &str, path: &str| model::Mount {
        host_path: host_path.to_owned(),
        path: path.to_owned(),
        read_only: true,
        docker_host_path: None,
    };
    spec.mounts = vec![
        mount("/", "/data"),
        mount("/etc/passwd", "/usr/share/x/file"),
        mount("/", "/data/in"),
    ];
    add_mount_points(&top, &spec).unwrap();
    for (path, mode) in [
        ("", 0o40_755),
        ("workspace", 0o40_755),
        ("tmp", 0o41_777),
        ("run/secrets", 0o40_700),
        ("run/shoal", 0o40_755),
        ("data", 0o40_755),
        ("data/in", 0o40_755),
        ("usr/share/x", 0o40_755),
    ] {
        assert_eq!(fs::metadata(top.join(path)).unwrap().mode(), mode, "{path}");
    }
    assert!(fs::metadata(top.join("usr/share/x/file")).unwrap().is_file());
    assert!(!top.join("dev").exists());
    spec.mounts = vec![mount("/is/not/there", "/else")];
    assert!(add_mount_points(&top, &spec).is_err());
    fs::remove_dir_all(top).unwrap();
}
