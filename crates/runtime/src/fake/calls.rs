//! The calls that a sandbox of the fake runtime answers.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::message::{Command, Entry, ExitStatus, Port};
use model::{ClaimSettings, InstanceId, NetworkPolicy, WorkspaceId};
use tokio::io::DuplexStream;

use super::faults::Operation;
use super::handle::Handle;
use super::paths::Last;
use super::process::{FakeProcess, OutputReader};
use super::program::{Out, PROGRAMS, Program};
use super::sandbox::{Address, FakeSandbox, NewFile, PIPE_BYTES};
use super::scale::SCALE_FILE;
use super::script::{self, Step};
use crate::contract::{Inside, NetworkSockets, Sandbox};
use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::exec::{ExecSpec, Process, ProcessControl, Sink, Stdin};
use crate::files::{ByteReader, Duplex, FileReader, FileWriter, Page};
use crate::inside::{FileWatch, FindQuery, Found, SearchQuery, Searched, Socket, WatchQuery};
use crate::spec::LaunchSpec;

/// Where relative paths begin.
const WORKSPACE: &str = "/workspace";

impl Handle {
    /// Does something with the files that a path belongs to, as a request.
    async fn with_files<T>(
        &self,
        path: &str,
        last: Last,
        act: impl FnOnce(&mut super::tree::Tree, &str) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        self.enter(Operation::Files).await?;
        let path = self.place(WORKSPACE, path, last)?;
        self.with_tree(&path, |tree| act(tree, &path))
    }

    fn own(&self) -> Result<Arc<FakeSandbox>, RuntimeError> {
        let world = self.world.upgrade();
        let own = world.and_then(|world| world.state().sandboxes.get(&self.spec.instance).cloned());
        own.ok_or_else(|| {
            RuntimeError::new(RuntimeErrorCode::SandboxGone, "use a sandbox", "the sandbox is gone")
        })
    }

    fn environment(&self, spec: &ExecSpec) -> BTreeMap<String, String> {
        let mut env: BTreeMap<String, String> = [
            ("HOME", "/workspace"),
            ("LANG", "C.UTF-8"),
            ("LOGNAME", "agent"),
            ("PATH", "/usr/bin:/bin"),
            ("SHELL", "/bin/sh"),
            ("SHOAL_SCALE_FILE", SCALE_FILE),
            ("BLAXEL_SCALE_FILE", SCALE_FILE),
            ("USER", "agent"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        env.extend(self.state().env.clone());
        env.extend(spec.env.iter().cloned());
        env
    }

    fn steps(&self, spec: &ExecSpec) -> Result<Vec<Step>, RuntimeError> {
        let invalid =
            |cause: String| RuntimeError::new(RuntimeErrorCode::Invalid, "read the command", cause);
        let argv = match &spec.command {
            Command::Shell(line) => return script::parse(line).map_err(invalid),
            Command::Argv(argv) => argv,
        };
        let name = argv.first().ok_or_else(|| invalid("no program".to_owned()))?;
        match (name.rsplit('/').next().unwrap_or_default(), &argv[1..]) {
            ("sh", [c, line]) if c == "-c" => script::parse(line).map_err(invalid),
            (known, _) if PROGRAMS.contains(&known) || self.added(known).is_some() => {
                Ok(vec![Step::plain(argv)])
            }
            _ => Err(RuntimeError::new(
                RuntimeErrorCode::NotFound,
                "start a program",
                format!("no program {name}"),
            )
            .with_errno(2)),
        }
    }
}

fn output(sink: Sink, process: &Arc<FakeProcess>) -> (Out, Option<ByteReader>) {
    match sink {
        Sink::Null => (Out::Null, None),
        Sink::Stream => {
            let (ours, pipe) = tokio::io::duplex(PIPE_BYTES);
            let reader = OutputReader { pipe, process: Arc::clone(process) };
            (Out::pipe(ours), Some(Box::new(reader)))
        }
    }
}

#[async_trait]
impl Sandbox for Handle {
    fn instance(&self) -> InstanceId {
        self.spec.instance
    }

    fn spec(&self) -> &LaunchSpec {
        &self.spec
    }

    fn ended(&self) -> Option<Died> {
        self.phase().ended
    }

    /// Each program that it ever started took a millisecond.
    fn cpu_time(&self) -> Option<Duration> {
        let programs = self.state().last_pid.saturating_sub(1);
        self.phase().ended.is_none().then(|| Duration::from_millis(programs.into()))
    }

    async fn claim(
        &self,
        settings: &ClaimSettings,
        workspace: Option<WorkspaceId>,
    ) -> Result<(), RuntimeError> {
        self.enter(Operation::Claim).await?;
        self.bind(settings, workspace)
    }

    fn inside(&self) -> &dyn Inside {
        self
    }

    async fn freeze(&self) -> Result<(), RuntimeError> {
        self.meet_faults(Operation::Freeze).await?;
        self.set_frozen(true);
        Ok(())
    }

    async fn thaw(&self) -> Result<(), RuntimeError> {
        self.meet_faults(Operation::Thaw).await?;
        self.set_frozen(false);
        Ok(())
    }

    async fn sync(&self) -> Result<(), RuntimeError> {
        self.meet_faults(Operation::Sync).await?;
        self.check(Operation::Sync.step())
    }

    async fn wipe(&self) -> Result<(), RuntimeError> {
        self.renew().await
    }

    async fn prove(&self) -> Result<(), RuntimeError> {
        self.prove_clean().await
    }

    async fn arm_network(&self, policy: &NetworkPolicy) -> Result<NetworkSockets, RuntimeError> {
        self.arm(policy).await
    }

    async fn change_network(&self, policy: &NetworkPolicy) -> Result<(), RuntimeError> {
        self.change(policy).await
    }

    async fn refused_addresses(&self) -> Result<Vec<(Ipv4Addr, u16)>, RuntimeError> {
        self.refused().await
    }

    async fn disarm_network(&self) -> Result<(), RuntimeError> {
        self.disarm().await
    }

    fn container_id(&self) -> Option<String> {
        // Where it is wiped it stands for a container.
        self.world
            .upgrade()
            .filter(|world| world.wipes)
            .map(|_| format!("fake-{}", self.instance()))
    }

    async fn kill(&self) -> Result<(), RuntimeError> {
        if self.phase().ended.is_none() {
            match self.meet_faults(Operation::Kill).await {
                Err(error) if self.phase().ended.is_none() => return Err(error),
                Ok(()) | Err(_) => self.die(Some(ExitStatus::Signal(9)), false),
            }
        }
        self.vanished().await;
        Ok(())
    }
}

#[async_trait]
impl Inside for Handle {
    async fn ping(&self) -> Result<(), RuntimeError> {
        self.enter(Operation::Ping).await
    }

    async fn exec(&self, spec: ExecSpec) -> Result<Process, RuntimeError> {
        let spec = spec.validated()?;
        self.meet_faults(Operation::Exec).await?;
        self.is_present(Operation::Exec)?;
        let (own, world) = (self.own()?, self.world.upgrade());
        let tasks = world.map(|world| Arc::clone(&world.tasks)).unwrap_or_default();
        let pid = {
            let mut state = self.state();
            state.last_pid += 1;
            state.last_pid
        };
        let fake = Arc::new(FakeProcess::new(pid, &tasks, spec.terminal));
        let control: Arc<dyn ProcessControl> = Arc::clone(&fake) as _;
        let mut process = Process::new(control);
        process.started(spec.confirm_start.then_some(pid));
        let steps = match self.steps(&spec) {
            Ok(steps) => steps,
            Err(error) if spec.confirm_start => return Err(error),
            Err(error) => {
                fake.finish(Err(error));
                return Ok(process);
            }
        };
        let (stdout, out) = output(spec.stdout, &fake);
        let (stderr, err) = if spec.terminal.is_some() {
            (stdout.clone(), None)
        } else {
            output(spec.stderr, &fake)
        };
        (process.stdout, process.stderr) = (out, err);
        let env = self.environment(&spec);
        let stdin: Option<DuplexStream> = match (spec.stdin, spec.terminal) {
            (Stdin::Null, None) => None,
            (Stdin::Bytes(bytes), _) => {
                let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
                process.feed(Box::new(ours), bytes, 0);
                Some(theirs)
            }
            (Stdin::Stream, _) | (Stdin::Null, Some(_)) => {
                let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
                process.stdin = Some(Box::new(ours));
                Some(theirs)
            }
        };
        let cwd = spec.cwd.unwrap_or_else(|| WORKSPACE.to_owned());
        let channel = spec.channel.then(|| {
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            process.channel = Some(Box::new(own.counted(ours)));
            theirs
        });
        let process_of = Arc::clone(&fake);
        let program =
            Program { sandbox: own, process: process_of, env, cwd, stdin, stdout, stderr, channel };
        {
            let mut state = self.state();
            state.processes.retain(|process| process.lives());
            state.processes.push(Arc::clone(&fake));
        }
        fake.start(program.run(steps));
        // It may have died while the program was started.
        if let Some(died) = self.phase().ended {
            fake.finish_tree(Err(died.error("exec")));
        }
        Ok(process)
    }

    async fn read_file(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileReader, RuntimeError> {
        self.enter(Operation::ReadFile).await?;
        let path = self.place(WORKSPACE, path, Last::Follow)?;
        let (entry, bytes) = self.with_tree(&path, |tree| tree.read(&path))?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let length = length.map_or(usize::MAX, |length| length.try_into().unwrap_or(usize::MAX));
        let part = bytes[from..].iter().copied().take(length).collect::<Vec<_>>();
        let reader = self.own()?.counted(Cursor::new(part));
        Ok(FileReader::new(entry, Box::new(reader)))
    }

    async fn write_file(&self, path: &str, mode: Option<u32>) -> Result<FileWriter, RuntimeError> {
        self.enter(Operation::WriteFile).await?;
        let path = self.place(WORKSPACE, path, Last::Follow)?;
        let sink = self.own()?.counted(NewFile { path, mode, bytes: Vec::new() });
        Ok(FileWriter::new(Box::new(sink)))
    }

    async fn list_files(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, RuntimeError> {
        self.with_files(path, Last::Follow, |tree, path| tree.list(path, after, limit)).await
    }

    async fn stat(&self, path: &str) -> Result<Entry, RuntimeError> {
        self.with_files(path, Last::Keep, |tree, path| tree.stat(path)).await
    }

    async fn make_directory(&self, path: &str, parents: bool) -> Result<(), RuntimeError> {
        let last = if parents { Last::Follow } else { Last::Keep };
        self.with_files(path, last, |tree, path| tree.make_directory(path, parents)).await
    }

    async fn make_link(&self, path: &str, target: &str) -> Result<(), RuntimeError> {
        self.with_files(path, Last::Keep, |tree, path| tree.make_link(path, target)).await
    }

    async fn link_file(&self, path: &str, target: &str) -> Result<(), RuntimeError> {
        let target = self.place(WORKSPACE, target, Last::Keep)?;
        self.with_files(path, Last::Keep, |tree, path| tree.link_file(path, &target)).await
    }

    async fn set_metadata(
        &self,
        path: &str,
        mode: Option<u32>,
        modified_ms: Option<i64>,
    ) -> Result<(), RuntimeError> {
        self.with_files(path, Last::Keep, |tree, path| tree.set_metadata(path, mode, modified_ms))
            .await
    }

    async fn move_file(&self, from: &str, to: &str, overwrite: bool) -> Result<(), RuntimeError> {
        let to = self.place(WORKSPACE, to, Last::Keep)?;
        self.with_files(from, Last::Keep, |tree, from| tree.rename(from, &to, overwrite)).await
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<(), RuntimeError> {
        self.with_files(path, Last::Keep, |tree, path| tree.remove(path, recursive)).await
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn Duplex>, RuntimeError> {
        self.enter(Operation::Ports).await?;
        Ok(Box::new(self.own()?.connect(&Address::Port(port))?))
    }

    async fn dial_unix(&self, path: &str) -> Result<Box<dyn Duplex>, RuntimeError> {
        self.enter(Operation::Ports).await?;
        let path = self.place(WORKSPACE, path, Last::Follow)?;
        Ok(Box::new(self.own()?.connect(&Address::Path(path))?))
    }

    async fn ports(&self) -> Result<Vec<Port>, RuntimeError> {
        self.enter(Operation::Ports).await?;
        let port = |address: &Address| match *address {
            Address::Port(port) => Some(Port { port, loopback_only: true }),
            Address::Path(_) => None,
        };
        Ok(self.state().listeners.keys().filter_map(port).collect())
    }

    async fn find(&self, query: &FindQuery) -> Result<Found, RuntimeError> {
        self.is_present(Operation::Files)?;
        self.find_files(query).await
    }

    async fn search(&self, query: &SearchQuery) -> Result<Searched, RuntimeError> {
        self.is_present(Operation::Files)?;
        self.search_files(query).await
    }

    async fn watch(&self, query: &WatchQuery) -> Result<FileWatch, RuntimeError> {
        self.is_present(Operation::Files)?;
        self.watch_files(self.own()?, query).await
    }

    async fn sockets(&self, pid: u32) -> Result<Vec<Socket>, RuntimeError> {
        self.is_present(Operation::Ports)?;
        self.sockets_of(pid).await
    }

    async fn show_holds(&self, processes: u32, seen: u64) -> Result<(), RuntimeError> {
        self.enter(Operation::Ports).await?;
        self.state().scale.show_holds(processes, seen);
        Ok(())
    }

    async fn processes(&self) -> Result<Vec<u32>, RuntimeError> {
        self.enter(Operation::Ports).await?;
        let state = self.state();
        Ok(state.processes.iter().filter(|one| one.lives()).map(|one| one.pid).collect())
    }
}
