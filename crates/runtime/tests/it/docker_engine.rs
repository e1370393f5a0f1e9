//! Docker sandboxes as an engine tells of them and as programs in them see them: what they are kept
//! from, what is shown to them, which images they are made from, and how they end.

use std::fs;
use std::io;
use std::process::Command as HostCommand;
use std::sync::Arc;
use std::time::Duration;

use model::template::Recycle;
use model::{ImageId, InstanceId, Mount, Template, TemplateName};
use runtime::docker::{DockerConfig, Endpoint, LinkMode, PathMap, StoredImages};
use runtime::{
    Died, ExecSpec, ExitStatus, LaunchSpec, Root, RunLimits, Runtime, RuntimeErrorCode, Sandbox,
};
use serde_json::{Value, json};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::timeout;

use crate::docker::{DockerSubject, docker, endpoint};

const PATIENCE: Duration = Duration::from_secs(30);
const LIMITS: RunLimits = RunLimits { output_bytes: 1 << 20, timeout: Duration::from_secs(20) };

/// Whether there is an engine; says so if not, and fails where there must be one.
fn skipped() -> bool {
    match endpoint() {
        Ok(_) => false,
        Err(why) => {
            skip(&why);
            true
        }
    }
}

/// Says that a test could not be tried, which fails where it must be possible.
#[expect(clippy::print_stdout, reason = "a skip must be heard")]
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}: in CI nothing may be skipped");
    println!("!!!! skipped: {why} !!!!");
}

pub(crate) fn spec(number: u128) -> LaunchSpec {
    let template = Template::named(TemplateName::new("default").expect("a name"));
    let instance = InstanceId::from_u128(u128::from(std::process::id()) << 64 | number);
    LaunchSpec::of(&template, instance)
}

async fn start(subject: &DockerSubject) -> Arc<dyn Runtime> {
    let config = subject.config("run-1").expect("an engine");
    runtime::docker::start(config).await.expect("started")
}

/// What a line of shell says.
async fn said(sandbox: &dyn Sandbox, line: &str) -> String {
    let run = sandbox.inside().run(ExecSpec::shell(line), LIMITS).await.expect("run");
    assert!(run.exit.success(), "{line}: {run:?}");
    String::from_utf8(run.stdout).expect("text")
}

fn inspected(sandbox: &dyn Sandbox) -> Value {
    let id = sandbox.container_id().expect("a container");
    let all: Value = serde_json::from_str(&docker(&["inspect", &id])).expect("json");
    all[0].clone()
}

async fn died(deaths: &mut runtime::Deaths) -> Died {
    timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death")
}

async fn close(runtime: Arc<dyn Runtime>, subject: &DockerSubject) {
    runtime.shutdown().await.expect("shut down");
    assert_eq!(subject.containers(), Vec::<String>::new());
}

#[tokio::test]
async fn docker_containers_are_hardened() {
    if skipped() {
        return;
    }
    for link in [LinkMode::Socket, LinkMode::Attach] {
        let subject = DockerSubject::new(link);
        let runtime = start(&subject).await;
        let sandbox = runtime.launch(spec(1)).await.expect("launched");
        let found = inspected(&*sandbox);
        let (host, config) = (&found["HostConfig"], &found["Config"]);
        let megabyte = 1 << 20;
        for (what, is, should) in [
            ("root", &host["ReadonlyRootfs"], json!(true)),
            ("privileged", &host["Privileged"], json!(false)),
            ("dropped", &host["CapDrop"], json!(["ALL"])),
            ("added", &host["CapAdd"], json!(null)),
            ("devices", &host["Devices"], json!(null)),
            ("security", &host["SecurityOpt"], json!(["no-new-privileges"])),
            ("network", &host["NetworkMode"], json!("none")),
            ("ipc", &host["IpcMode"], json!("private")),
            ("pid", &host["PidMode"], json!("")),
            ("uts", &host["UTSMode"], json!("")),
            ("pids", &host["PidsLimit"], json!(128)),
            ("memory", &host["Memory"], json!(512 * megabyte)),
            ("swap", &host["MemorySwap"], json!(512 * megabyte)),
            ("processors", &host["NanoCpus"], json!(1_000_000_000)),
            ("killer", &host["OomKillDisable"], json!(false)),
            ("log", &host["LogConfig"]["Type"], json!("none")),
            ("restart", &host["RestartPolicy"]["Name"], json!("no")),
            ("removal", &host["AutoRemove"], json!(false)),
            ("user", &config["User"], json!("1000:1000")),
            ("terminal", &config["Tty"], json!(false)),
            ("input", &config["OpenStdin"], json!(link == LinkMode::Attach)),
            (
                "instance",
                &config["Labels"]["shoal.instance"],
                json!(sandbox.instance().to_string()),
            ),
            ("epoch", &config["Labels"]["shoal.epoch"], json!("run-1")),
        ] {
            // Engines write nothing as nothing, false or an empty list.
            let nothing = should.is_null() && is.as_array().is_some_and(Vec::is_empty);
            assert!(*is == should || nothing, "{what}: {is} instead of {should} ({link:?})");
        }
        for mount in found["Mounts"].as_array().expect("mounts") {
            assert_eq!(mount["RW"], json!(false), "{mount}");
        }
        let status = said(&*sandbox, "cat /proc/self/status").await;
        for line in [
            "CapEff:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(status.contains(line), "{line}: {status}");
        }
        assert_eq!(said(&*sandbox, "id -u; id -g; id -G").await, "1000\n1000\n1000\n");
        assert_eq!(said(&*sandbox, "grep -c : /proc/net/dev; ls -A /sys").await, "1\n");
        assert_eq!(said(&*sandbox, "getent hosts localhost | head -n 1 | wc -l").await, "1\n");
        let limits = said(&*sandbox, "ulimit -n; ulimit -Hn; ulimit -c").await;
        assert_eq!(limits, "4096\n4096\n0\n");
        for refused in
            ["touch /x", "touch /etc/x", "touch /usr/x", "touch /.shoal/x", "touch /dev/x"]
        {
            let run = sandbox.inside().run(ExecSpec::shell(refused), LIMITS).await.expect("run");
            assert!(!run.exit.success(), "{refused}");
        }
        let places = "df --output=size,target -k /workspace /tmp /dev/shm /run/shoal | tail -n +2 \
                      | awk '{print $1, $2}'";
        let sizes = "524288 /workspace\n262144 /tmp\n262144 /dev/shm\n8192 /run/shoal\n";
        assert_eq!(said(&*sandbox, places).await, sizes);
        let no_programs = "cp /usr/bin/true /run/shoal/true && /run/shoal/true";
        let run = sandbox.inside().run(ExecSpec::shell(no_programs), LIMITS).await.expect("run");
        assert!(!run.exit.success(), "programs are not run from the scale file's directory");
        said(&*sandbox, "cp /usr/bin/true /tmp/true && /tmp/true").await;
        // The way in is gone before any program is there.
        assert_eq!(said(&*sandbox, "ls -A /.shoal/link | wc -l").await, "0\n");
        // Of this machine's environment nothing gets in.
        let environment = said(&*sandbox, "env").await;
        assert!(!environment.contains("CARGO") && !environment.contains("DOCKER"), "{environment}");
        close(runtime, &subject).await;
    }
}

#[tokio::test]
async fn docker_mounts_have_their_paths_and_modes() {
    if skipped() {
        return;
    }
    let subject = DockerSubject::new(LinkMode::Auto);
    let place = subject.place().join("shown");
    fs::create_dir_all(place.join("sub")).expect("made");
    fs::write(place.join("file"), "text").expect("written");
    fs::write(place.join("sub/inner"), "inner").expect("written");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&place, open).expect("opened");
    let host_path =
        |name: &str| place.join(name).display().to_string().trim_end_matches('/').to_owned();
    let mount = |host_path: String, path: &str, read_only: bool| Mount {
        host_path,
        path: path.to_owned(),
        read_only,
        docker_host_path: None,
    };
    let mut config = subject.config("run-1").expect("an engine");
    // As if the server saw the same files elsewhere.
    let elsewhere = vec![("/elsewhere".to_owned(), host_path(""))];
    config.host_path_map = PathMap::new(elsewhere).expect("a map");
    let runtime = runtime::docker::start(config).await.expect("started");
    let mut spec = spec(1);
    spec.mounts = vec![
        mount(host_path(""), "/shown", true),
        mount(host_path(""), "/again", false),
        mount(host_path("file"), "/opt/file", true),
        mount("/elsewhere/sub".to_owned(), "/mapped", true),
        Mount {
            docker_host_path: Some(host_path("sub")),
            ..mount("/nowhere".into(), "/said", true)
        },
    ];
    let sandbox = runtime.launch(spec).await.expect("launched");
    let seen = "cat /shown/file /opt/file /mapped/inner /said/inner";
    assert_eq!(said(&*sandbox, seen).await, "texttextinnerinner");
    for refused in ["echo x > /shown/new", "echo x > /opt/file", "echo x > /mapped/inner"] {
        let run = sandbox.inside().run(ExecSpec::shell(refused), LIMITS).await.expect("run");
        assert!(!run.exit.success(), "{refused}");
    }
    said(&*sandbox, "echo written > /again/new").await;
    assert_eq!(fs::read_to_string(place.join("new")).expect("there"), "written\n");
    assert_eq!(said(&*sandbox, "cat /shown/new").await, "written\n", "one directory at two places");
    close(runtime, &subject).await;
}

/// An image of nothing that wants everything that images can want.
fn greedy_image(name: &str) {
    let empty = std::env::temp_dir().join(format!("empty-{}.tar", std::process::id()));
    let mut tar = HostCommand::new("tar");
    tar.args(["--create", "--files-from=/dev/null", "--file"]).arg(&empty);
    let made = tar.status().expect("tar");
    assert!(made.success());
    let path = empty.display().to_string();
    docker(&[
        "import",
        "--change",
        "VOLUME /data /workspace",
        "--change",
        "ENV SECRET=known",
        "--change",
        "USER root",
        "--change",
        "HEALTHCHECK --interval=1s CMD touch /tmp/checked",
        "--change",
        "ENTRYPOINT [\"/bin/nothing\"]",
        "--change",
        "LABEL shoal.node=another",
        &path,
        name,
    ]);
    let _ = fs::remove_file(empty);
}

#[tokio::test]
async fn an_image_of_the_engine_is_used_without_its_own_settings() {
    if skipped() {
        return;
    }
    let subject = DockerSubject::new(LinkMode::Auto);
    let runtime = start(&subject).await;
    let name = format!("greedy-{}", std::process::id());
    greedy_image(&name);
    let id = docker(&["image", "inspect", "--format", "{{.Id}}", &name]);
    let spec = LaunchSpec { root: Root::Named { name: name.clone(), stored: None }, ..spec(1) };
    let sandbox = runtime.launch(spec).await.expect("launched");
    let found = inspected(&*sandbox);
    assert_eq!(found["Image"], json!(id), "pinned");
    assert_eq!(found["Config"]["User"], json!("1000:1000"));
    assert_eq!(found["Config"]["Healthcheck"]["Test"], json!(["NONE"]));
    assert_eq!(subject.containers().len(), 1, "found by our label, not by the image's");
    assert!(
        sandbox.inside().write_all("/data/x", b"x", None).await.is_err(),
        "no place to write to"
    );
    sandbox.inside().write_all("/workspace/x", b"x", None).await.expect("one to write to");
    // There is nothing in this image but what we bring.
    let guest = ExecSpec::argv(["/.shoal/guest", "nothing"]);
    let run = sandbox.inside().run(guest, LIMITS).await.expect("run");
    assert!(!run.exit.success());
    // Those without a name of ours are called by their hashes.
    let anonymous = || {
        let listed = docker(&["volume", "ls", "--quiet"]);
        listed.lines().filter(|name| !name.contains('-')).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = anonymous();
    close(runtime, &subject).await;
    let left: Vec<_> = anonymous().into_iter().filter(|one| before.contains(one)).collect();
    assert_eq!(left, Vec::<String>::new());
    docker(&["image", "rm", &name]);
}

#[tokio::test]
async fn an_image_that_no_source_has_is_reported() {
    if skipped() {
        return;
    }
    let subject = DockerSubject::new(LinkMode::Auto);
    let runtime = start(&subject).await;
    let name = "localhost:1/missing/image:1".to_owned();
    let spec = LaunchSpec { root: Root::Named { name, stored: None }, ..spec(1) };
    let refused = runtime.launch(spec).await.err().expect("refused");
    assert_eq!(refused.code, RuntimeErrorCode::LaunchFailed);
    assert!(refused.cause.contains("localhost:1/missing/image:1"), "{refused}");
    assert!(refused.cause.contains("cannot pull it"), "{refused}");
    let spec = LaunchSpec { root: Root::Directory("x".into()), ..self::spec(2) };
    let refused = runtime.launch(spec).await.err().expect("refused");
    assert_eq!(refused.code, RuntimeErrorCode::Unsupported);
    close(runtime, &subject).await;
}

struct FromStore(images::Store);

impl StoredImages for FromStore {
    fn write_archive(&self, image: ImageId, tag: &str, to: &mut dyn io::Write) -> io::Result<()> {
        self.0.write_archive(image, tag, to).map_err(io::Error::other)
    }
}

#[tokio::test]
async fn an_image_of_the_store_is_brought_to_the_engine() {
    if skipped() {
        return;
    }
    let subject = DockerSubject::new(LinkMode::Auto);
    let directory = subject.place().join("root");
    fs::create_dir_all(directory.join("etc")).expect("made");
    let text = format!("of the store, {}", std::process::id());
    fs::write(directory.join("etc/made"), &text).expect("written");
    let store = images::Store::open(&subject.place().join("images")).expect("opened");
    let imported = store.import(
        images::Source::Path(directory),
        &model::ImageName::new("stored").expect("a name"),
        &images::ImportOptions::default(),
        &mut |_| std::ops::ControlFlow::Continue(()),
    );
    let id = imported.expect("imported").id;
    let mut config: DockerConfig = subject.config("run-1").expect("an engine");
    config.images = Some(Arc::new(FromStore(store)));
    let runtime = runtime::docker::start(config).await.expect("started");
    let named = Root::Named { name: format!("stored-{}", std::process::id()), stored: Some(id) };
    for (number, root) in [(1, named), (2, Root::Image(id))] {
        let sandbox = runtime.launch(LaunchSpec { root, ..spec(number) }).await.expect("launched");
        assert_eq!(
            sandbox.inside().read_all("/etc/made", 100).await.expect("read"),
            text.as_bytes()
        );
    }
    let missing = Root::Image(ImageId::from_bytes([9; 32]));
    let refused = runtime.launch(LaunchSpec { root: missing, ..spec(3) }).await.err();
    let refused = refused.expect("refused");
    assert!(refused.cause.contains("there is no image"), "{refused}");
    close(runtime, &subject).await;
    docker(&["image", "rm", &format!("shoal/image:{id}")]);
}

/// Passes on whatever is said to a port to the engine's socket, and back.
async fn forward(port: TcpListener, socket: String) {
    while let Ok((mut from, _)) = port.accept().await {
        let socket = socket.clone();
        tokio::spawn(async move {
            let mut to = UnixStream::connect(socket).await?;
            tokio::io::copy_bidirectional(&mut from, &mut to).await
        });
    }
}

#[tokio::test]
async fn docker_engine_works_by_tcp_as_by_socket() {
    if skipped() {
        return;
    }
    let Ok(Endpoint::Unix(socket)) = endpoint() else {
        return skip("the engine has no socket");
    };
    let port = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = port.local_addr().expect("an address");
    let forwarding = tokio::spawn(forward(port, socket));
    let subject = DockerSubject::new(LinkMode::Auto);
    let mut config = subject.config("run-1").expect("an engine");
    config.endpoint = Endpoint::parse(&format!("tcp://{address}")).expect("an address");
    let runtime = runtime::docker::start(config).await.expect("started");
    let mut deaths = runtime.events();
    // Programs of this machine are not the engine's as far as we know, and nothing can be proven
    // there.
    let refused = runtime.launch(spec(1)).await.err().expect("refused");
    assert!(refused.cause.contains("name an image"), "{refused}");
    assert_eq!(runtime.traits().recycle, Recycle::Recreate);
    let name = format!("behind-a-port-{}", std::process::id());
    greedy_image(&name);
    let root = Root::Named { name: name.clone(), stored: None };
    let sandbox = runtime.launch(LaunchSpec { root, ..spec(2) }).await.expect("launched");
    sandbox.inside().write_all("/workspace/kept", b"kept", None).await.expect("written");
    assert_eq!(sandbox.inside().read_all("/workspace/kept", 10).await.expect("read"), b"kept");
    let run = sandbox.inside().run(ExecSpec::argv(["/.shoal/guest", "nothing"]), LIMITS).await;
    assert_eq!(
        run.expect("run").exit.status,
        ExitStatus::Code(2),
        "the guest refuses an unknown role"
    );
    docker(&["kill", &sandbox.container_id().expect("a container")]);
    assert_eq!(died(&mut deaths).await.instance, sandbox.instance());
    close(runtime, &subject).await;
    forwarding.abort();
    docker(&["image", "rm", &name]);
}

#[tokio::test]
async fn container_death_is_reported_once_whatever_ended_it() {
    if skipped() {
        return;
    }
    for link in [LinkMode::Socket, LinkMode::Attach] {
        let subject = DockerSubject::new(link);
        let runtime = start(&subject).await;
        let mut deaths = runtime.events();
        let ways: [(&[&str], Option<i32>); 3] = [
            (&["kill"], Some(9)),
            (&["kill", "--signal", "KILL"], Some(9)),
            (&["rm", "--force"], None),
        ];
        for (number, (way, signal)) in (1..).zip(ways) {
            let sandbox = runtime.launch(spec(number)).await.expect("launched");
            let waiting = Arc::clone(&sandbox);
            let waiting = tokio::spawn(async move {
                waiting.inside().run(ExecSpec::shell("sleep 100"), LIMITS).await
            });
            let id = sandbox.container_id().expect("a container");
            docker(&[way, &[id.as_str()]].concat());
            let died = died(&mut deaths).await;
            assert_eq!(died.instance, sandbox.instance());
            if let Some(signal) = signal {
                assert_eq!(died.status, Some(ExitStatus::Signal(signal)), "{way:?}");
            }
            assert!(waiting.await.expect("no panic").is_err(), "waiting callers fail");
            assert_eq!(
                sandbox.inside().ping().await.expect_err("gone").code,
                RuntimeErrorCode::SandboxGone
            );
            assert!(deaths.try_next().is_none(), "once");
        }
        close(runtime, &subject).await;
    }
}

#[tokio::test]
async fn out_of_memory_is_reported_for_programs_and_sandboxes() {
    if skipped() {
        return;
    }
    for link in [LinkMode::Socket, LinkMode::Attach] {
        let subject = DockerSubject::new(link);
        let runtime = start(&subject).await;
        let mut small = spec(1);
        small.limits.memory_mb = 64;
        small.limits.best_effort = true;
        let sandbox = runtime.launch(small).await.expect("launched");
        let hog = "exec python3 -c 'x = bytearray(1 << 30)'";
        let run = sandbox.inside().run(ExecSpec::shell(hog), LIMITS).await.expect("run");
        assert_eq!(run.exit.status, ExitStatus::Signal(9), "{run:?}");
        assert!(run.exit.out_of_memory, "{link:?}: {run:?}");
        let run = sandbox.inside().run(ExecSpec::shell("kill -9 $$"), LIMITS).await.expect("run");
        assert!(!run.exit.out_of_memory, "reported once");
        close(runtime, &subject).await;
    }
}

#[tokio::test]
async fn frozen_containers_are_removed_too_and_paused_ones_are_thawed() {
    if skipped() {
        return;
    }
    let subject = DockerSubject::new(LinkMode::Auto);
    let runtime = start(&subject).await;
    let sandbox = runtime.launch(spec(1)).await.expect("launched");
    sandbox.freeze().await.expect("frozen");
    sandbox.freeze().await.expect("that it is frozen is fine");
    assert_eq!(inspected(&*sandbox)["State"]["Paused"], json!(true));
    docker(&["unpause", &sandbox.container_id().expect("a container")]);
    sandbox.thaw().await.expect("that it is not frozen is fine");
    sandbox.inside().ping().await.expect("it answers");
    sandbox.freeze().await.expect("frozen");
    timeout(PATIENCE, sandbox.kill()).await.expect("in time").expect("killed");
    assert_eq!(subject.containers(), Vec::<String>::new());
    close(runtime, &subject).await;
}

#[test]
fn docker_orphans_of_an_earlier_run_only_are_reaped() {
    if skipped() {
        return;
    }
    let subject = DockerSubject::new(LinkMode::Auto);
    let foreign = DockerSubject::new(LinkMode::Auto);
    let run = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().expect("a tokio runtime")
    };
    // Ends like a server that is killed: in the middle of everything, without a word.
    let first = run();
    let runtime = first.block_on(async {
        let runtime = start(&subject).await;
        runtime.launch(spec(1)).await.expect("launched");
        let (making, spec) = (Arc::clone(&runtime), spec(2));
        tokio::spawn(async move { making.launch(spec).await.map(drop) });
        while subject.containers().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        runtime
    });
    first.shutdown_timeout(Duration::from_millis(1));
    std::mem::forget(runtime);
    run().block_on(async {
        let neighbour = start(&foreign).await;
        let its = neighbour.launch(spec(3)).await.expect("launched");
        let config = subject.config("run-2").expect("an engine");
        let second = runtime::docker::start(config).await.expect("started");
        let mine = second.launch(spec(4)).await.expect("launched");
        let reaped = second.reap_orphans().await.expect("reaped");
        assert_eq!(reaped.runs, ["run-1"]);
        assert_eq!(reaped.stuck, vec![]);
        assert_eq!(subject.containers(), [mine.container_id().expect("a container")]);
        its.inside().ping().await.expect("a neighbour is left alone");
        mine.inside().ping().await.expect("and so is what is ours");
        let again = second.reap_orphans().await.expect("reaped");
        assert_eq!(again.runs, Vec::<String>::new());
        close(second, &subject).await;
        its.inside().ping().await.expect("still");
        close(neighbour, &foreign).await;
    });
}

#[tokio::test]
async fn instance_id_is_unique_and_a_kill_during_the_launch_leaves_nothing() {
    if skipped() {
        return;
    }
    let subject = DockerSubject::new(LinkMode::Auto);
    let runtime = start(&subject).await;
    let (first, second) = tokio::join!(runtime.launch(spec(1)), runtime.launch(spec(1)));
    let codes: Vec<_> =
        [&first, &second].into_iter().filter_map(|one| one.as_ref().err()).collect();
    assert_eq!(codes.len(), 1);
    assert_eq!(codes[0].code, RuntimeErrorCode::Duplicate);
    drop((first, second));
    for delay_ms in [0, 5, 20, 80, 200] {
        let (making, spec) = (Arc::clone(&runtime), spec(2));
        let instance = spec.instance;
        let launching = tokio::spawn(async move { making.launch(spec).await.map(drop) });
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        timeout(PATIENCE, runtime.kill(instance)).await.expect("in time").expect("killed");
        let listed = runtime.list().await.expect("listed");
        assert!(!listed.contains(&instance) || delay_ms == 0, "after {delay_ms} ms");
        let _ = launching.await;
        runtime.kill(instance).await.expect("killed");
    }
    close(runtime, &subject).await;
}
