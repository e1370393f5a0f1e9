//! Files of the host in sandboxes, as users of a server meet them: what is allowed is seen, what is
//! not is refused by name, and what changes meanwhile leads nowhere.

use std::os::unix::fs::symlink;

use crate::shell::{able, finish};
use crate::test_server::{Scratch, TestServer, isolated_command, output_of};

fn put(served: &TestServer, host_path: &str, more: &str) -> crate::shell::CommandOutput {
    let text = format!(
        "name = \"shows\"\nmounts = [{{ host_path = \"{host_path}\", path = \"/data\"{more} }}]\n\
         [pool]\npool_size = 0\n"
    );
    served.run_with_input(&["templates", "put", "-"], Some(text.as_bytes()))
}

#[test]
fn a_template_shows_what_the_server_allows_and_nothing_else() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let place = scratch.0.join("shown");
    std::fs::create_dir_all(place.join("data/deep")).unwrap();
    std::fs::write(place.join("data/deep/file"), "seen\n").unwrap();
    symlink("data", place.join("link")).unwrap();
    symlink("/etc", place.join("out")).unwrap();
    let allowed = format!("mounts.roots={}", place.display());
    let served = TestServer::start_on(scratch, &["--set", &allowed]);
    let at = |name: &str| place.join(name).to_str().unwrap().to_owned();
    for (path, more, word) in [
        (at("out"), "", "mounts[0].host_path"),
        ("/etc".to_owned(), "", "mounts[0].host_path"),
        (at("missing"), "", "No such file"),
        (at("data"), ", docker_host_path = \"/x\"", "mounts[0].docker_host_path"),
        (at("data/../data"), "", "mounts"),
        (at("data"), ", mode = \"z\"", "mode"),
    ] {
        let said = put(&served, &path, more);
        assert_ne!(said.code, Some(0), "{path}");
        assert!(said.stderr.contains(word), "{path}: {}", said.stderr);
    }
    assert_eq!(put(&served, &at("link"), "").code, Some(0));
    let id = served.text(&["create", "-T", "shows"]);
    assert_eq!(served.text(&["exec", &id, "--", "cat", "/data/deep/file"]), "seen");
    let written = served.run(&["exec", &id, "--shell", "echo x > /data/x"]);
    assert!(written.stderr.contains("Read-only"), "{written:?}");
    // The next sandbox must not show the new target of the link.
    std::fs::remove_file(place.join("link")).unwrap();
    symlink("/etc", place.join("link")).unwrap();
    let refused = served.run(&["create", "-T", "shows"]);
    assert!(refused.stderr.contains("mounts[0].host_path"), "{refused:?}");
    assert!(served.text(&["pools"]).contains("mounts[0].host_path"), "and the pool says so");
}

#[test]
fn a_directory_to_show_that_is_not_there_is_an_error_at_the_start() {
    let scratch = Scratch::new();
    let words = ["serve", "--listen", "127.0.0.1:0", "--set", "mounts.roots=/no/such/place"];
    let mut command = isolated_command(&words);
    command.env("SHOAL_DATA_DIR", scratch.0.join("data"));
    let said = output_of(finish(command.spawn().unwrap(), &[]));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("mounts.roots.0"), "{said:?}");
}
