//! Calls with one answer.

use std::os::fd::OwnedFd;

use guest_protocol::Env;
use guest_protocol::message::{Entry, Port, Reply, Request};

use super::GuestLink;
use super::call::Call;
use super::channel::Kind;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::files::Page;

impl GuestLink {
    /// Proves that the guest answers.
    pub async fn ping(&self) -> Result<(), RuntimeError> {
        self.done("ping", &Request::Ping).await
    }

    /// Replaces the environment that is bound to the sandbox.
    pub async fn claim(&self, env: Env) -> Result<(), RuntimeError> {
        self.done("claim", &Request::Claim { env }).await
    }

    /// Part of a directory.
    pub async fn list_files(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, RuntimeError> {
        let request =
            Request::List { path: path.to_owned(), after: after.map(<[u8]>::to_vec), limit };
        let (call, reply) = self.ask("list a directory", &request).await?;
        let Reply::Entries { entries, more } = reply else { return Err(call.nonsense(&reply)) };
        Ok(Page { entries, more })
    }

    /// Describes a file.
    pub async fn stat(&self, path: &str) -> Result<Entry, RuntimeError> {
        let (call, reply) = self.ask("stat", &Request::Stat { path: path.to_owned() }).await?;
        let Reply::Entry(entry) = reply else { return Err(call.nonsense(&reply)) };
        Ok(entry)
    }

    /// Makes a directory.
    pub async fn make_directory(&self, path: &str, parents: bool) -> Result<(), RuntimeError> {
        let request = Request::MakeDirectory { path: path.to_owned(), parents };
        self.done("make a directory", &request).await
    }

    /// Makes a symbolic link.
    pub async fn make_link(&self, path: &str, target: &str) -> Result<(), RuntimeError> {
        let request = Request::MakeLink { path: path.to_owned(), target: target.to_owned() };
        self.done("make a link", &request).await
    }

    /// Gives a file another name.
    pub async fn link_file(&self, path: &str, target: &str) -> Result<(), RuntimeError> {
        let request = Request::LinkFile { path: path.to_owned(), target: target.to_owned() };
        self.done("give a file another name", &request).await
    }

    /// Changes what is said about a file.
    pub async fn set_about(
        &self,
        path: &str,
        mode: Option<u32>,
        modified_ms: Option<i64>,
    ) -> Result<(), RuntimeError> {
        let request = Request::SetAbout { path: path.to_owned(), mode, modified_ms };
        self.done("change what is said about a file", &request).await
    }

    /// Renames a file or directory.
    pub async fn move_file(
        &self,
        from: &str,
        to: &str,
        overwrite: bool,
    ) -> Result<(), RuntimeError> {
        let request = Request::Move { from: from.to_owned(), to: to.to_owned(), overwrite };
        self.done("move a file", &request).await
    }

    /// Removes a file or directory.
    pub async fn remove(&self, path: &str, recursive: bool) -> Result<(), RuntimeError> {
        let request = Request::Remove { path: path.to_owned(), recursive };
        self.done("remove a file", &request).await
    }

    /// Tells the scale file how many processes keep the sandbox awake.
    pub async fn show_holds(&self, processes: u32, seen: u64) -> Result<(), RuntimeError> {
        self.done("show what keeps it awake", &Request::ShowHolds { processes, seen }).await
    }

    /// Which ports are listened on.
    pub async fn ports(&self) -> Result<Vec<Port>, RuntimeError> {
        let (call, reply) = self.ask("list ports", &Request::Ports).await?;
        let Reply::Ports(ports) = reply else { return Err(call.nonsense(&reply)) };
        Ok(ports)
    }

    /// Process ids inside of the programs that are not over.
    pub async fn processes(&self) -> Result<Vec<u32>, RuntimeError> {
        let (call, reply) = self.ask("list programs", &Request::Processes).await?;
        let Reply::Processes(found) = reply else { return Err(call.nonsense(&reply)) };
        Ok(found.iter().map(|one| one.pid).collect())
    }

    /// Ends everything that runs inside besides the guest; whatever else is asked for fails.
    pub async fn end_all(&self) -> Result<(), RuntimeError> {
        self.done("end all programs", &Request::EndAll).await
    }

    /// Lets the guest begin anew with this end of another connection, after [`Self::end_all`]. It
    /// says there when it is ready, or why not; this connection ends by itself.
    pub fn begin_again(&self, socket: OwnedFd) -> Result<(), RuntimeError> {
        const STEP: &str = "begin anew";
        if !self.connection.settings.pass_descriptors {
            let cause = "no connection can be passed to this guest";
            return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause));
        }
        let request = Request::BeginAgain;
        // The call ends with the connection, so that nobody waits for its answer.
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

pub(super) fn expect_done(call: &Call, reply: &Reply) -> Result<(), RuntimeError> {
    if *reply == Reply::Done { Ok(()) } else { Err(call.nonsense(reply)) }
}
