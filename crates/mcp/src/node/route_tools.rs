//! Which routes are tools of the server, and what a model is told of each.

use super::Node;
use crate::route_tool;
use crate::schemas::ApiDocument;
use crate::tool::Effect::{Adds, Changes, Reads};
use crate::tool::{Effect, Tool};
use web::operation::Route;

/// Routes that are tools: the name of the tool, that of the route, what it does to the world, and
/// what a model is told.
const ROUTED: &[(&str, &str, Effect, &str)] = &[
    (
        "checkout",
        "create_checkout",
        Adds,
        "Check out a sandbox of a template for exclusive use: a warm one if there is one. Answers with the lease (`id`) and \
         its `sandbox`, whose `id` every other tool takes.",
    ),
    (
        "create_sandbox",
        "create_sandbox",
        Adds,
        "Like checkout, but answers with the sandbox alone.",
    ),
    ("list_sandboxes", "list_sandboxes", Reads, "Your sandboxes; for admins all."),
    ("get_sandbox", "get_sandbox", Reads, "A sandbox as it is now."),
    (
        "renew_sandbox",
        "renew_sandbox",
        Changes,
        "Give the lease of a sandbox more time, from now on.",
    ),
    (
        "delete_sandbox",
        "delete_sandbox",
        Changes,
        "End a sandbox, whatever it is doing. Its files are gone.",
    ),
    (
        "why_sandbox",
        "why_sandbox",
        Reads,
        "Why a sandbox is as it is, or why and how it ended: the facts, and a sentence about them.",
    ),
    (
        "exec",
        "exec",
        Changes,
        "Run a program to its end and get its exit code and output. One of `command` (a line for the shell) and `argv` must \
         be given. It is killed at its timeout; what is to run on is started with start_process.",
    ),
    (
        "list_files",
        "list_files",
        Reads,
        "The files in a directory of a sandbox, in the order of their names.",
    ),
    (
        "stat_file",
        "stat_file",
        Reads,
        "Describe a file of a sandbox, without following a last link.",
    ),
    (
        "find_files",
        "find_files",
        Reads,
        "Files beneath a directory of a sandbox, by their names (as in a shell: `*.rs`) and kinds.",
    ),
    (
        "search_files",
        "search_files",
        Reads,
        "The lines in which a text is, in the files beneath a directory of a sandbox or in one file. The text is taken as it \
         is, not as a pattern.",
    ),
    (
        "make_directory",
        "make_directory",
        Adds,
        "Make a directory in a sandbox, with those above it.",
    ),
    ("move_file", "move_file", Changes, "Give a file or directory of a sandbox another name."),
    (
        "delete_file",
        "delete_file",
        Changes,
        "Remove a file of a sandbox, or with `recursive` a directory.",
    ),
    (
        "start_process",
        "start_process",
        Changes,
        "Start a program that runs on when this call is over. With `wait` its end is waited for, with `wait_for_ports` \
         until it listens; a wait that is over kills nothing. With `keep_alive` it keeps its sandbox awake.",
    ),
    (
        "list_processes",
        "list_processes",
        Reads,
        "The processes of a sandbox, over or not, the latest first.",
    ),
    (
        "get_process",
        "get_process",
        Reads,
        "A process of a sandbox as it is now, or how and why it ended.",
    ),
    (
        "wait_process",
        "wait_process",
        Reads,
        "Wait until a process is over, or until `timeout_ms` is.",
    ),
    (
        "process_logs",
        "process_logs",
        Reads,
        "What a process wrote: the end of it, or from `offset` on. Both outputs in the order in which they came.",
    ),
    ("close_stdin", "close_stdin", Changes, "End the input of a process."),
    (
        "stop_process",
        "stop_process",
        Changes,
        "Ask a process and all its descendants to end, and kill them if they have not in time.",
    ),
    ("kill_process", "kill_process", Changes, "Kill a process and all its descendants."),
    (
        "list_ports",
        "list_ports",
        Reads,
        "The ports on which something listens in a sandbox; with `wait_for` as soon as something listens on these too.",
    ),
    (
        "sandbox_status",
        "sandbox_status",
        Reads,
        "What keeps a sandbox awake, whether it is frozen, and when it will rest. It does not wake it.",
    ),
    (
        "stop_keeping_awake",
        "stop_keeping_awake",
        Changes,
        "Let the processes that keep a sandbox awake now do so no longer, at once or in a while. Nothing is killed, and the \
         latest call counts.",
    ),
    ("list_templates", "list_templates", Reads, "The templates that sandboxes are made from."),
    ("get_template", "get_template", Reads, "One template."),
    (
        "list_pools",
        "list_pools",
        Reads,
        "The pools: how many sandboxes each template has ready and in use.",
    ),
    ("get_pool", "get_pool", Reads, "The pool of one template."),
    ("get_stats", "get_stats", Reads, "Counts of the server and of each pool."),
    (
        "create_session",
        "create_session",
        Adds,
        "Begin a session: a conversation with files that survive its sandbox. Its sandbox is used by its `sandbox_id`.",
    ),
    ("list_sessions", "list_sessions", Reads, "Your sessions, newest first; for admins all."),
    ("get_session", "get_session", Reads, "A session as it is now."),
    (
        "send_turn",
        "send_turn",
        Changes,
        "Say something to a session and wait for what its harness makes of it. To the shell it is a command line.",
    ),
    ("list_turns", "list_turns", Reads, "What was said to a session, and what came of it."),
    ("get_turn", "get_turn", Reads, "One turn of a session."),
    (
        "pause_session",
        "pause_session",
        Changes,
        "Set a session aside; the next message resumes it.",
    ),
    (
        "resume_session",
        "resume_session",
        Changes,
        "Let a session that was set aside or stopped go on.",
    ),
    (
        "end_session",
        "end_session",
        Changes,
        "End a session, whatever it is doing. Its files are gone.",
    ),
];

pub(super) fn tools(routes: &[Route], document: &str) -> Vec<Tool<Node>> {
    let words = ApiDocument::new(document);
    let made = ROUTED.iter().filter_map(|&(name, operation, effect, text)| {
        let route = routes.iter().find(|route| route.operation.id == operation)?;
        route_tool::tool(&words, route, name, effect, text)
    });
    made.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn every_tool_of_a_route_has_its_route_and_takes_nothing_else() {
        let tools = tools(&v1::routes(), &v1::document());
        for (name, operation, ..) in ROUTED {
            let tool = tools.iter().find(|tool| tool.shown.name == *name);
            let tool = tool.unwrap_or_else(|| panic!("{name}: no route {operation}"));
            assert_eq!(tool.shown.input_schema["additionalProperties"], false, "{name}");
        }
        let mut names: Vec<_> = tools.iter().map(|tool| tool.shown.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), tools.len(), "each name once");
    }
}
