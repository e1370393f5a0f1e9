//! Calls with one answer. Streams of bytes, programs and inspection have modules of their own.

use std::os::fd::OwnedFd;

use async_trait::async_trait;
use guest_protocol::Env;
use guest_protocol::message::{Entry, Port, Reply, Request};

use super::GuestLink;
use super::call::Call;
use super::channel::Kind;
use crate::contract::Inside;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::exec::{ExecSpec, Process};
use crate::files::{Duplex, FileReader, FileWriter, Page};
use crate::inside::{FileWatch, FindQuery, Found, SearchQuery, Searched, Socket, WatchQuery};

impl GuestLink {
    /// Replaces the environment that is bound to the sandbox.
    pub async fn claim(&self, env: Env) -> Result<(), RuntimeError> {
        self.done("claim", &Request::Claim { env }).await
    }

    /// Ends everything that runs inside besides the guest; other calls fail from now on.
    pub async fn end_all(&self) -> Result<(), RuntimeError> {
        self.done("end all programs", &Request::EndAll).await
    }

    /// Makes the guest start again on this end of a new connection, after [`Self::end_all`]. The
    /// guest reports there when it is ready, or why not; this connection ends by itself.
    pub fn begin_again(&self, socket: OwnedFd) -> Result<(), RuntimeError> {
        const STEP: &str = "begin anew";
        if !self.connection.settings.pass_descriptors {
            let cause = "the connection to this guest cannot pass descriptors";
            return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause));
        }
        let request = Request::BeginAgain;
        // The call ends with the connection, so there is no answer to wait for.
        Call::open(&self.connection, STEP, Kind::Single, &request, vec![socket]).map(drop)
    }

    async fn done(&self, step: &'static str, request: &Request) -> Result<(), RuntimeError> {
        let (call, reply) = self.ask(step, request).await?;
        expect_done(&call, &reply)
    }

    async fn ask(
        &self,
        step: &'static str,
        request: &Request,
    ) -> Result<(Call, Reply), RuntimeError> {
        let call = Call::open(&self.connection, step, Kind::Single, request, Vec::new())?;
        let reply = call.last().await?;
        Ok((call, reply))
    }
}

#[async_trait]
impl Inside for GuestLink {
    async fn ping(&self) -> Result<(), RuntimeError> {
        self.done("ping", &Request::Ping).await
    }

    async fn exec(&self, spec: ExecSpec) -> Result<Process, RuntimeError> {
        self.spawn(spec).await
    }

    async fn read_file(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileReader, RuntimeError> {
        self.open_file(path, offset, length).await
    }

    async fn write_file(&self, path: &str, mode: Option<u32>) -> Result<FileWriter, RuntimeError> {
        self.new_file(path, mode)
    }

    async fn list_files(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, RuntimeError> {
        let request =
            Request::List { path: path.to_owned(), after: after.map(<[u8]>::to_vec), limit };
        let (call, reply) = self.ask("list a directory", &request).await?;
        let Reply::Entries { entries, more } = reply else {
            return Err(call.unexpected_answer(&reply));
        };
        Ok(Page { entries, more })
    }

    async fn stat(&self, path: &str) -> Result<Entry, RuntimeError> {
        let (call, reply) = self.ask("stat", &Request::Stat { path: path.to_owned() }).await?;
        let Reply::Entry(entry) = reply else { return Err(call.unexpected_answer(&reply)) };
        Ok(entry)
    }

    async fn make_directory(&self, path: &str, parents: bool) -> Result<(), RuntimeError> {
        let request = Request::MakeDirectory { path: path.to_owned(), parents };
        self.done("make a directory", &request).await
    }

    async fn make_link(&self, path: &str, target: &str) -> Result<(), RuntimeError> {
        let request = Request::MakeLink { path: path.to_owned(), target: target.to_owned() };
        self.done("make a link", &request).await
    }

    async fn link_file(&self, path: &str, target: &str) -> Result<(), RuntimeError> {
        let request = Request::LinkFile { path: path.to_owned(), target: target.to_owned() };
        self.done("give a file another name", &request).await
    }

    async fn set_metadata(
        &self,
        path: &str,
        mode: Option<u32>,
        modified_ms: Option<i64>,
    ) -> Result<(), RuntimeError> {
        let request = Request::SetAbout { path: path.to_owned(), mode, modified_ms };
        self.done("change file metadata", &request).await
    }

    async fn move_file(&self, from: &str, to: &str, overwrite: bool) -> Result<(), RuntimeError> {
        let request = Request::Move { from: from.to_owned(), to: to.to_owned(), overwrite };
        self.done("move a file", &request).await
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<(), RuntimeError> {
        let request = Request::Remove { path: path.to_owned(), recursive };
        self.done("remove a file", &request).await
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn Duplex>, RuntimeError> {
        self.connect(&Request::Dial { port }).await
    }

    async fn dial_unix(&self, path: &str) -> Result<Box<dyn Duplex>, RuntimeError> {
        self.connect(&Request::DialUnix { path: path.to_owned() }).await
    }

    async fn ports(&self) -> Result<Vec<Port>, RuntimeError> {
        let (call, reply) = self.ask("list ports", &Request::Ports).await?;
        let Reply::Ports(ports) = reply else { return Err(call.unexpected_answer(&reply)) };
        Ok(ports)
    }

    async fn find(&self, query: &FindQuery) -> Result<Found, RuntimeError> {
        self.find_files(query).await
    }

    async fn search(&self, query: &SearchQuery) -> Result<Searched, RuntimeError> {
        self.search_files(query).await
    }

    async fn watch(&self, query: &WatchQuery) -> Result<FileWatch, RuntimeError> {
        self.watch_files(query).await
    }

    async fn sockets(&self, pid: u32) -> Result<Vec<Socket>, RuntimeError> {
        self.sockets_of(pid).await
    }

    async fn show_holds(&self, processes: u32, seen: u64) -> Result<(), RuntimeError> {
        self.done("show what keeps it awake", &Request::ShowHolds { processes, seen }).await
    }

    async fn processes(&self) -> Result<Vec<u32>, RuntimeError> {
        let (call, reply) = self.ask("list programs", &Request::Processes).await?;
        let Reply::Processes(found) = reply else { return Err(call.unexpected_answer(&reply)) };
        Ok(found.iter().map(|one| one.pid).collect())
    }
}

pub(super) fn expect_done(call: &Call, reply: &Reply) -> Result<(), RuntimeError> {
    if *reply == Reply::Done { Ok(()) } else { Err(call.unexpected_answer(reply)) }
}
