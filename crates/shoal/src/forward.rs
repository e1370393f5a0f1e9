//! `shoal forward`: forwards ports of this machine to ports inside a sandbox. A connection thaws a
//! frozen sandbox.

use std::process::ExitCode;

use client::{Client, Inside};
use model::{SandboxId, SessionId};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::native;
use crate::output::Output;
use crate::run::signals::Signals;
use crate::server::{Server, cannot};

/// Connections at once, for each port.
const CONNECTIONS_MAX: usize = 256;

/// Arguments of `shoal forward`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal forward SANDBOX 3000             http://127.0.0.1:3000 is the server inside\n  \
    shoal forward SANDBOX 3000:8080        at port 8080 of this machine\n  \
    shoal forward SANDBOX 3000:0 5432      port 3000 at any free port, and also port 5432\n  \
    shoal forward --session SESSION 3000   to the sandbox of a session; the session is resumed if needed\n\n\
    The command runs until you interrupt it.\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Arguments {
    /// The sandbox
    #[arg(value_name = "SANDBOX", required_unless_present = "session")]
    sandbox: Option<String>,
    /// A session instead of a sandbox
    #[arg(long, value_name = "SESSION")]
    session: Option<SessionId>,
    /// Ports inside the sandbox; LOCAL is the port of this machine, if it is another one
    #[arg(value_name = "PORT[:LOCAL]")]
    ports: Vec<String>,
    /// Address of this machine to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    listen: std::net::IpAddr,
    #[command(flatten)]
    server: Server,
}

/// A port inside the sandbox, and the port of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    inside: u16,
    here: u16,
}

fn pair(text: &str) -> Result<Pair, Failure> {
    let (inside, here) = text.split_once(':').unwrap_or((text, text));
    let wrong = || {
        Failure::new(format!("cannot forward {text:?}"), "a port looks like PORT or PORT:LOCAL")
            .usage()
    };
    let inside: u16 = inside.parse().map_err(|_| wrong())?;
    let here = here.parse().map_err(|_| wrong())?;
    if inside == 0 { Err(wrong()) } else { Ok(Pair { inside, here }) }
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let client = arguments.server.client()?;
    let (place, ports) = place(arguments, &client)?;
    let pairs: Vec<_> = ports.iter().map(|text| pair(text)).collect::<Result<_, _>>()?;
    let tokio = native::tokio()?;
    let done = native::block_on(&tokio, serve(&client, &place, arguments.listen, &pairs, output));
    tokio.shutdown_background();
    done.map(|()| ExitCode::SUCCESS)
}

/// The target and the ports: the first argument is a sandbox unless `--session` is given.
fn place(arguments: &Arguments, client: &Client) -> Result<(Inside, Vec<String>), Failure> {
    let mut ports = arguments.ports.clone();
    let usage = |what: &str, why: &str| Failure::new(what.to_owned(), why.to_owned()).usage();
    let inside = match (arguments.session, &arguments.sandbox) {
        (Some(session), first) => {
            ports.splice(0..0, first.clone());
            Inside::clone(&client.session(session))
        }
        (None, Some(sandbox)) => {
            let id: Result<SandboxId, _> = sandbox.parse();
            let id = id.map_err(|_| {
                usage("cannot forward", "the first argument is not the id of a sandbox")
            })?;
            Inside::clone(&client.sandbox(id))
        }
        (None, None) => return Err(usage("cannot forward", "no sandbox was given")),
    };
    if ports.is_empty() {
        return Err(usage("cannot forward", "no port was given"));
    }
    Ok((inside, ports))
}

async fn serve(
    client: &Client,
    inside: &Inside,
    address: std::net::IpAddr,
    pairs: &[Pair],
    output: &Output,
) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    client.health().await.map_err(cannot("forward"))?;
    let mut listening = JoinSet::new();
    for pair in pairs {
        let bound = TcpListener::bind((address, pair.here)).await;
        let listener = bound.map_err(|error| {
            Failure::new(format!("cannot listen on port {}", pair.here), error)
                .remedy("choose another port: PORT:LOCAL, or PORT:0 for any")
        })?;
        let at = listener.local_addr().map_err(|error| Failure::new("cannot listen", error))?;
        output.say(&format!("{at} forwards to port {}", pair.inside));
        listening.spawn(accept(listener, inside.clone(), pair.inside));
    }
    tokio::select! {
        number = signals.next_end() => {
            output.remark(&format!("ended by signal {number}"));
            Ok(())
        }
        Some(failed) = listening.join_next() => {
            let cause = failed.map_or_else(|error| error.to_string(), |error| error.to_string());
            Err(Failure::new("cannot accept connections", cause))
        }
    }
}

async fn accept(listener: TcpListener, inside: Inside, port: u16) -> std::io::Error {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(pass(stream, inside.clone(), port));
                }
                Err(error) => return error,
            },
        }
    }
}

/// Forwards one connection. If the sandbox refuses it, the local connection is closed: TCP has no
/// other way to report that.
async fn pass(mut here: TcpStream, inside: Inside, port: u16) {
    // Small messages must not wait to be combined.
    let _ = here.set_nodelay(true);
    if let Ok(mut there) = inside.forward(port).await {
        let _ = copy_bidirectional(&mut here, &mut there).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_ports_are_parsed() {
        let of = |inside, here| Some(Pair { inside, here });
        for (text, expected) in [
            ("3000", of(3000, 3000)),
            ("3000:8080", of(3000, 8080)),
            ("3000:0", of(3000, 0)),
            ("0", None),
            ("0:80", None),
            ("65536", None),
            ("80:", None),
            ("a:b", None),
            ("", None),
        ] {
            assert_eq!(pair(text).ok(), expected, "{text}");
        }
    }
}
