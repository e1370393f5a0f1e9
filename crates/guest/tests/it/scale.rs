//! The scale file, as programs write and read it.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use guest_protocol::message::{ExitStatus, FaultCode, GUEST_CHANNEL, Reply, Request};

use crate::host::{Host, Ran};

/// A guest with a scale file.
struct Stage {
    host: Host,
    directory: PathBuf,
}

impl Stage {
    fn start() -> Self {
        let directory = crate::host::scratch_directory().join(format!(
            "shoal-scale-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::create_dir(&directory).unwrap();
        let host = Host::start_with(&["scale", directory.to_str().unwrap()]);
        Self { host, directory }
    }

    fn run(&mut self, line: &str) -> Ran {
        self.host.run(line)
    }

    fn says(&mut self, line: &str) -> String {
        let ran = self.run(line);
        assert_eq!((ran.status, ran.stderr.as_str()), (ExitStatus::Code(0), ""), "{line}: {ran:?}");
        ran.stdout
    }

    /// Reads reports until the last one is as expected.
    fn wait_for_report(&mut self, expected: (u32, bool)) {
        let mut dropped = false;
        loop {
            let reply = self.host.reply(GUEST_CHANNEL);
            let Reply::Scale { seq, scale, drops } = reply else { panic!("{reply:?}") };
            dropped |= drops;
            assert_eq!(self.host.call(&Request::ScaleHeard { seq }), Reply::Done);
            if (scale, dropped) == expected {
                return;
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn writes_are_counted_and_read_back() {
    let mut stage = Stage::start();
    let place = stage.directory.join("scale");
    let place = place.to_str().unwrap();
    assert_eq!(
        stage.says("echo $SHOAL_SCALE_FILE; echo $BLAXEL_SCALE_FILE"),
        format!("{place}\n{place}\n")
    );
    for (line, expected) in [
        ("cat $F", "=0\n"),
        ("echo + > $F; cat $F", "=1\n"),
        ("echo + > $F; echo + > $F; cat $F", "=3\n"),
        ("printf - > $F; cat $F", "=2\n"),
        ("printf +5 > $F; cat $F", "=7\n"),
        ("printf '%s\\n' -3 +1 > $F; cat $F", "=5\n"),
        ("echo + >> $F; cat $F", "=6\n"),
        ("echo =0 > $F; cat $F", "=0\n"),
        ("echo - > $F; cat $F", "=0\n"),
        ("echo =4 > $F; cat $F", "=4\n"),
        ("echo nonsense > $F; : > $F; cat $F", "=4\n"),
        ("printf -- ++++ > $F; cat $F", "=8\n"),
        ("exec 3> $F; echo + >&3; echo + >&3; exec 3>&-; cat $F", "=10\n"),
        ("exec 3> $F; echo - >&3; cat $F; echo - >&3; cat $F", "=9\n=8\n"),
        ("exec 3< $F; echo + > $F; cat <&3; cat $F", "=8\n=9\n"),
    ] {
        let line = line.replace("$F", "$SHOAL_SCALE_FILE");
        assert_eq!(stage.says(&line), expected, "{line}");
    }
    stage.wait_for_report((9, true));
}

/// Like the program that made the file known: no truncation, a lock, a few bytes at the start.
#[test]
fn scale_file_overwrites_differ_from_appends() {
    let mut stage = Stage::start();
    let write = "import fcntl, os, sys\n\
        for word in sys.argv[1:]:\n\
        \x20   fd = os.open(os.environ['BLAXEL_SCALE_FILE'], os.O_RDWR | os.O_CREAT, 0o644)\n\
        \x20   fcntl.flock(fd, fcntl.LOCK_EX)\n\
        \x20   os.write(fd, word.encode())\n\
        \x20   fcntl.flock(fd, fcntl.LOCK_UN)\n\
        \x20   os.close(fd)\n\
        \x20   print(open(os.environ['SHOAL_SCALE_FILE']).read().strip(), end=' ')";
    fs::write(stage.host.path("write.py"), write).unwrap();
    let line = "python3 write.py + + + - +7 - =0 + =12 - =0 =0";
    assert_eq!(stage.says(line), "=1 =2 =3 =2 =9 =8 =0 =1 =12 =11 =0 =0 ");
    // In a truncated file, the same bytes mean something else.
    assert_eq!(
        stage.says(
            "echo =3 > $SHOAL_SCALE_FILE; echo +3 > $SHOAL_SCALE_FILE; cat $SHOAL_SCALE_FILE"
        ),
        "=6\n"
    );
}

#[test]
fn scale_file_writes_are_not_lost_however_many_write_at_once() {
    let mut stage = Stage::start();
    let processes = "for i in $(seq 20); do (for j in $(seq 10); do echo + > $SHOAL_SCALE_FILE; done) & done; wait; cat $SHOAL_SCALE_FILE";
    assert_eq!(stage.says(processes), "=200\n");
    let mixed = "for i in $(seq 20); do (for j in $(seq 10); do echo +2 > $SHOAL_SCALE_FILE; echo - > $SHOAL_SCALE_FILE; done) & done; wait; cat $SHOAL_SCALE_FILE";
    assert_eq!(stage.says(mixed), "=400\n");
    let threads = "import os, threading\n\
        def work():\n\
        \x20   for _ in range(100):\n\
        \x20       with open(os.environ['SHOAL_SCALE_FILE'], 'w') as file: file.write('-')\n\
        threads = [threading.Thread(target=work) for _ in range(4)]\n\
        for one in threads: one.start()\n\
        for one in threads: one.join()\n\
        print(open(os.environ['SHOAL_SCALE_FILE']).read().strip())";
    fs::write(stage.host.path("threads.py"), threads).unwrap();
    assert_eq!(stage.says("python3 threads.py"), "=0\n");
    let back = "for i in $(seq 20); do echo =$i > $SHOAL_SCALE_FILE & done; wait; echo =7 > $SHOAL_SCALE_FILE; cat $SHOAL_SCALE_FILE";
    assert_eq!(stage.says(back), "=7\n");
    stage.wait_for_report((7, true));
}

#[test]
fn one_scale_report_at_a_time_is_sent() {
    let mut stage = Stage::start();
    stage.says("echo + > $SHOAL_SCALE_FILE");
    let first = stage.host.reply(GUEST_CHANNEL);
    assert_eq!(first, Reply::Scale { seq: 1, scale: 1, drops: false });
    for _ in 0..5 {
        stage.says("echo + > $SHOAL_SCALE_FILE");
    }
    assert_eq!(stage.says("cat $SHOAL_SCALE_FILE"), "=6\n");
    assert!(!stage.host.has_reply(GUEST_CHANNEL), "nothing more before the first was acknowledged");
    assert_eq!(stage.host.call(&Request::ScaleHeard { seq: 1 }), Reply::Done);
    let second = stage.host.reply(GUEST_CHANNEL);
    assert_eq!(second, Reply::Scale { seq: 2, scale: 6, drops: false });
}

#[test]
fn the_scale_file_shows_what_the_host_holds() {
    let mut stage = Stage::start();
    let holds = |processes, seen| Request::ShowHolds { processes, seen };
    assert_eq!(stage.host.call(&holds(2, 0)), Reply::Done);
    assert_eq!(
        stage.says("cat $SHOAL_SCALE_FILE; echo + > $SHOAL_SCALE_FILE; cat $SHOAL_SCALE_FILE"),
        "=2\n=3\n"
    );
    stage.wait_for_report((1, false));
    assert_eq!(
        stage.says("echo - > $SHOAL_SCALE_FILE; echo - > $SHOAL_SCALE_FILE; cat $SHOAL_SCALE_FILE"),
        "=2\n"
    );
    stage.wait_for_report((0, false));
    assert_eq!(stage.says("echo =1 > $SHOAL_SCALE_FILE; cat $SHOAL_SCALE_FILE"), "=1\n");
    // A count from before the host knew of the drop is out of date.
    assert_eq!(stage.host.call(&holds(2, 2)), Reply::Done);
    assert_eq!(stage.says("cat $SHOAL_SCALE_FILE"), "=1\n");
    stage.wait_for_report((1, true));
    assert_eq!(stage.host.call(&holds(3, 3)), Reply::Done);
    assert_eq!(stage.says("cat $SHOAL_SCALE_FILE"), "=4\n");
}

#[test]
fn a_broken_scale_file_is_restored_for_the_next_program() {
    let mut stage = Stage::start();
    stage.says("echo +4 > $SHOAL_SCALE_FILE");
    for harm in [
        "rm $F",
        "rm $F; mkfifo $F",
        "rm $F; mkdir $F",
        "rm $F; ln -s /etc/passwd $F",
        "mv $F $F.away",
        "echo x > other; mv other $F",
        "mkfifo ${F%/*}/.new",
        "chmod 0 $F; echo $F",
        "truncate -s 1M $F; : > $F",
        "exec 9< $F; for i in $(seq 200); do exec 8> $F; done",
    ] {
        stage.run(&harm.replace("$F", "$SHOAL_SCALE_FILE").replace("${F%", "${SHOAL_SCALE_FILE%"));
        let found = stage.says("chmod 644 $SHOAL_SCALE_FILE; cat $SHOAL_SCALE_FILE");
        assert_eq!(found, "=4\n", "{harm}");
        let about = fs::symlink_metadata(stage.directory.join("scale")).unwrap().file_type();
        assert!(about.is_file() && !about.is_fifo(), "{harm}");
    }
    assert_eq!(stage.says("echo + > $SHOAL_SCALE_FILE; cat $SHOAL_SCALE_FILE"), "=5\n");
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    assert!(!passwd.contains("=4"), "no link is followed");
}

/// The guest itself holds the lease, so it cannot wait until it gives the file away.
#[test]
fn scale_file_is_not_read_from_outside_and_goes_on_counting() {
    let mut stage = Stage::start();
    let path = stage.directory.join("scale").to_str().unwrap().to_owned();
    let read = Request::ReadFile { path, offset: 0, length: None };
    assert_eq!(stage.host.code(&read), FaultCode::Denied);
    assert_eq!(stage.says("echo + > $SHOAL_SCALE_FILE; cat $SHOAL_SCALE_FILE"), "=1\n");
}
