//! One small static binary with several roles, chosen by its first argument. The **launcher** is
//! privileged and makes sandboxes from specs. Its children become the **guest**, the first process
//! of a sandbox, without another exec. In a container that an external runtime made, the guest is
//! started directly, and the **keeper** wipes and proves the container from outside. The binary
//! must never start threads: every role copies its memory to children or shares it with them.

mod bare;
mod bundle;
mod contained;
mod keeper;
mod launcher;
mod network;
mod serve;

use std::os::fd::AsFd as _;
use std::process::ExitCode;

use contained::StartKind;
use keeper::Tables;
use serve::{Identity, Link, ScaleSettings, Settings, serve};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["launcher", ..] => launcher::main(),
        ["keeper"] => keeper::main(Tables::Tried),
        ["keeper", "without-tables"] => keeper::main(Tables::Unused),
        ["contained", link] => contained::main(link, StartKind::First),
        ["contained", link, "again"] => contained::main(link, StartKind::Restart),
        ["serve", workspace] => serve_standard_input(workspace, None, None),
        ["serve", workspace, "scale", scale] => serve_standard_input(workspace, None, Some(scale)),
        ["serve", workspace, uid, gid] => match (uid.parse(), gid.parse()) {
            (Ok(uid), Ok(gid)) => {
                serve_standard_input(workspace, Some(Identity { uid, gid }), None)
            }
            _ => ExitCode::from(2),
        },
        ["bundle", ref rest @ ..] => bundle::main(rest),
        ["noop"] => ExitCode::SUCCESS,
        ["bare-spawner", program] => bare::spawner(program),
        _ => ExitCode::from(2),
    }
}

/// The guest outside of a sandbox of ours: its connection is standard input.
fn serve_standard_input(
    workspace: &str,
    workload: Option<Identity>,
    scale: Option<&str>,
) -> ExitCode {
    let Ok(connection) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let locks = || std::fs::File::open("/proc/locks").ok().map(Into::into);
    let scale =
        scale.map(|directory| ScaleSettings { directory: directory.to_owned(), locks: locks() });
    let settings = Settings { workload, workspace: workspace.to_owned(), scale, contained: None };
    serve(Link::Socket(connection), settings).exit_code()
}
