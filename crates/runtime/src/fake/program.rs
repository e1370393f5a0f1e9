//! What programs of the fake runtime do. They are few, say what they do by their names, and do the
//! same thing every time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::message::ExitStatus;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::Mutex;

use super::process::{FakeProcess, exit};
use super::sandbox::{Address, FakeSandbox};
use super::script::{Output, Step, When, Word};
use super::test_programs::FakeProgramContext;

/// The programs there are.
pub(crate) const PROGRAMS: &[&str] = &[
    "cat", "channel", "crash", "echo", "env", "exit", "false", "head", "kill", "listen", "oom",
    "printenv", "pwd", "read", "rm", "sh", "sleep", "stty", "true", "write",
];

/// Where bytes go.
#[derive(Clone)]
pub(crate) enum Out {
    Null,
    Pipe(Arc<Mutex<DuplexStream>>),
}

impl Out {
    pub(crate) fn pipe(end: DuplexStream) -> Self {
        Self::Pipe(Arc::new(Mutex::new(end)))
    }

    /// Whether there is still a reader.
    pub(crate) async fn write(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Null => true,
            Self::Pipe(pipe) => pipe.lock().await.write_all(bytes).await.is_ok(),
        }
    }
}

/// A program and what belongs to it.
pub(crate) struct Program {
    pub sandbox: Arc<FakeSandbox>,
    pub process: Arc<FakeProcess>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub stdin: Option<DuplexStream>,
    pub stdout: Out,
    pub stderr: Out,
    pub channel: Option<DuplexStream>,
}

/// How one command ended.
enum Ended {
    /// The line goes on.
    Code(i32),
    /// So did the line.
    Line(ExitStatus),
}

impl Program {
    /// Takes the steps of a line in order; its exit is that of the last one.
    pub(crate) async fn run(mut self, steps: Vec<Step>) -> ExitStatus {
        let mut code = 0;
        for step in steps {
            if step.when == When::AfterSuccess && code != 0 {
                continue;
            }
            self.sandbox.thawed().await;
            if step.background {
                self.start_background(step);
                code = 0;
                continue;
            }
            match self.step(step).await {
                Ended::Code(ended) => code = ended,
                Ended::Line(status) => return status,
            }
            // What a frozen program has done shows only when it is thawed.
            self.sandbox.thawed().await;
        }
        ExitStatus::Code(code)
    }

    fn start_background(&self, mut step: Step) {
        step.background = false;
        let mut program = Self {
            sandbox: Arc::clone(&self.sandbox),
            process: Arc::clone(&self.process),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            stdin: None,
            stdout: self.stdout.clone(),
            stderr: self.stderr.clone(),
            channel: None,
        };
        self.process.start_background(async move {
            program.step(step).await;
        });
    }

    async fn step(&mut self, step: Step) -> Ended {
        let words: Vec<String> = step.words.iter().map(|word| self.expand(word)).collect();
        let mut captured = Vec::new();
        let ended = self.command(&words, &mut captured).await;
        let wanted = match &step.output {
            Output::Stdout => self.stdout.write(&captured).await,
            Output::Stderr => self.stderr.write(&captured).await,
            Output::File { path, append } => {
                let path = self.expand(path);
                if let Err(error) = self.sandbox.append(&self.cwd, &path, captured, *append) {
                    self.complain(&words[0], &error.to_string()).await;
                    return Ended::Code(1);
                }
                true
            }
        };
        // A program that writes to a closed pipe is ended by SIGPIPE.
        if wanted { ended } else { Ended::Line(ExitStatus::Signal(13)) }
    }

    fn expand(&self, word: &Word) -> String {
        if word.literal {
            return word.text.clone();
        }
        match word.text.strip_prefix('$') {
            Some("$") => self.process.pid.to_string(),
            Some(name) if !name.is_empty() => self.env.get(name).cloned().unwrap_or_default(),
            Some(_) | None => word.text.clone(),
        }
    }

    async fn complain(&self, name: &str, what: &str) {
        self.stderr.write(format!("{name}: {what}\n").as_bytes()).await;
    }

    async fn command(&mut self, words: &[String], out: &mut Vec<u8>) -> Ended {
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        match (words[0].rsplit('/').next().unwrap_or_default(), arguments.as_slice()) {
            ("true", _) => Ended::Code(0),
            ("false", _) => Ended::Code(1),
            ("echo", words) => say(out, &words.join(" ")),
            ("pwd", []) => say(out, &self.cwd),
            ("exit", []) => Ended::Line(ExitStatus::Code(0)),
            ("exit", [code]) => Ended::Line(ExitStatus::Code(code.parse().unwrap_or(2))),
            ("env", []) => {
                for (name, value) in &self.env {
                    say(out, &format!("{name}={value}"));
                }
                Ended::Code(0)
            }
            ("printenv", [name]) => match self.env.get(*name) {
                Some(value) => say(out, value),
                None => Ended::Code(1),
            },
            ("cat", []) => self.copy_input().await,
            ("cat" | "read", paths) => self.show(paths, out).await,
            ("write", [path, text]) => {
                let bytes = text.as_bytes().to_vec();
                self.result("write", self.sandbox.append(&self.cwd, path, bytes, false)).await
            }
            ("rm", [path]) => self.result("rm", self.sandbox.remove_path(&self.cwd, path)).await,
            ("sleep", [seconds]) => {
                let seconds = seconds.parse().unwrap_or(0.0);
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                Ended::Code(0)
            }
            ("head", ["-c", count, "/dev/zero"]) => self.zeros(count.parse().unwrap_or(0)).await,
            ("kill", [signal, pid]) if *pid == self.process.pid.to_string() => {
                let signal = signal.trim_start_matches('-').parse().unwrap_or(15);
                Ended::Line(ExitStatus::Signal(signal))
            }
            ("stty", ["size"]) => match self.process.terminal() {
                Some(size) => say(out, &format!("{} {}", size.rows, size.columns)),
                None => Ended::Code(1),
            },
            ("listen", [path]) if path.starts_with('/') => {
                self.listen(Address::Path((*path).to_owned())).await
            }
            ("listen", [port]) => self.listen(Address::Port(port.parse().unwrap_or(0))).await,
            ("channel", []) => {
                if let Some(channel) = self.channel.take() {
                    give_back(channel).await;
                }
                Ended::Code(0)
            }
            ("oom", []) => {
                let mut how = exit(ExitStatus::Signal(9));
                how.out_of_memory = true;
                self.process.finish(Ok(how));
                Ended::Line(ExitStatus::Signal(9))
            }
            ("crash", []) => {
                self.sandbox.die(Some(ExitStatus::Code(70)), false);
                Ended::Line(ExitStatus::Signal(9))
            }
            (name, _) if PROGRAMS.contains(&name) => {
                self.complain(name, "these arguments are not known").await;
                Ended::Code(2)
            }
            (name, _) if let Some(added) = self.sandbox.added(name) => {
                Ended::Line(added.run(self.inside(words)).await)
            }
            (name, _) => {
                self.complain("sh", &format!("{name}: not found")).await;
                Ended::Code(127)
            }
        }
    }

    async fn result(&self, name: &str, result: Result<(), crate::RuntimeError>) -> Ended {
        match result {
            Ok(()) => Ended::Code(0),
            Err(error) => {
                self.complain(name, &error.to_string()).await;
                Ended::Code(1)
            }
        }
    }

    async fn show(&self, paths: &[&str], out: &mut Vec<u8>) -> Ended {
        for path in paths {
            match self.sandbox.contents(&self.cwd, path) {
                Ok(bytes) => out.extend_from_slice(&bytes),
                Err(error) => return self.result("cat", Err(error)).await,
            }
        }
        Ended::Code(0)
    }

    async fn copy_input(&mut self) -> Ended {
        let Some(stdin) = &mut self.stdin else { return Ended::Code(0) };
        let mut buf = [0; 8192];
        loop {
            match stdin.read(&mut buf).await {
                Ok(0) | Err(_) => return Ended::Code(0),
                Ok(n) if self.stdout.write(&buf[..n]).await => {}
                Ok(_) => return Ended::Line(ExitStatus::Signal(13)),
            }
        }
    }

    async fn zeros(&self, mut count: usize) -> Ended {
        while count > 0 {
            let n = count.min(8192);
            if !self.stdout.write(&[0; 8192][..n]).await {
                return Ended::Line(ExitStatus::Signal(13));
            }
            count -= n;
        }
        Ended::Code(0)
    }

    /// The context of a test program.
    fn inside(&mut self, argv: &[String]) -> FakeProgramContext {
        FakeProgramContext {
            argv: argv.to_vec(),
            env: self.env.clone(),
            channel: self.channel.take(),
            stdout: self.stdout.clone(),
            stderr: self.stderr.clone(),
            sandbox: Arc::clone(&self.sandbox),
            pid: self.process.pid,
        }
    }

    /// Listens and gives back what it is sent.
    async fn listen(&self, address: Address) -> Ended {
        let Some(mut listener) = self.sandbox.listen(self.process.pid, address) else {
            self.complain("listen", "the address is in use").await;
            return Ended::Code(1);
        };
        while let Some(connection) = listener.accept().await {
            self.process.start_background(give_back(connection));
        }
        Ended::Code(0)
    }
}

/// Echoes what it is sent. A peer that goes away ends only its own connection.
async fn give_back(connection: DuplexStream) {
    let (mut from, mut to) = tokio::io::split(connection);
    let _ = tokio::io::copy(&mut from, &mut to).await;
    let _ = to.shutdown().await;
}

fn say(out: &mut Vec<u8>, line: &str) -> Ended {
    out.extend_from_slice(line.as_bytes());
    out.push(b'\n');
    Ended::Code(0)
}
