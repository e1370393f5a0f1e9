//! The routes that are tools of the server, and the description of each for models.

use super::Node;
use crate::route_tool;
use crate::schemas::ApiDocument;
use crate::tool::Effect::{Adds, Changes, Reads};
use crate::tool::{Effect, Tool};
use web::operation::Route;

/// Routes that are tools: the name of the tool, the name of the route, its side effects, and the
/// description for models.
const ROUTED: &[(&str, &str, Effect, &str)] = &[
    (
        "checkout",
        "create_checkout",
        Adds,
        "Check out a sandbox of a template for exclusive use: a warm one if possible. Answers with the lease (`id`) and \
         its `sandbox`, whose `id` every other tool takes.",
    ),
    (
        "create_sandbox",
        "create_sandbox",
        Adds,
        "Like checkout, but answers with the sandbox alone.",
    ),
    ("list_sandboxes", "list_sandboxes", Reads, "List your sandboxes; for admins all."),
    ("get_sandbox", "get_sandbox", Reads, "Get a sandbox."),
    ("renew_sandbox", "renew_sandbox", Changes, "Renew the lease of a sandbox, from now on."),
    (
        "delete_sandbox",
        "delete_sandbox",
        Changes,
        "End a sandbox at once, even if it is in use. Its files are deleted.",
    ),
    (
        "why_sandbox",
        "why_sandbox",
        Reads,
        "Explain why a sandbox is in its state, or why it ended: the facts, and a summary in a sentence.",
    ),
    (
        "exec",
        "exec",
        Changes,
        "Run a program to its end and get its exit code and output. Exactly one of `command` (a shell command line) and `argv` must \
         be given. It is killed at its timeout; use start_process for a program that must outlive this call.",
    ),
    (
        "list_files",
        "list_files",
        Reads,
        "List the files in a directory of a sandbox, in the order of their names.",
    ),
    (
        "stat_file",
        "stat_file",
        Reads,
        "Describe a file of a sandbox; a link itself is described, not its target.",
    ),
    (
        "find_files",
        "find_files",
        Reads,
        "Find files beneath a directory of a sandbox by name (shell patterns such as `*.rs`) and kind.",
    ),
    (
        "search_files",
        "search_files",
        Reads,
        "Search for a text in the files beneath a directory of a sandbox, or in one file, and get the matching lines. The text is taken \
         literally, not as a pattern.",
    ),
    (
        "make_directory",
        "make_directory",
        Adds,
        "Create a directory in a sandbox, with its parents.",
    ),
    ("move_file", "move_file", Changes, "Rename a file or directory of a sandbox."),
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
        "Start a program that outlives this call. With `wait` the answer comes at its end, with `wait_for_ports` when it \
         listens on the ports; the end of the wait does not kill it. With `keep_alive` its sandbox is not frozen.",
    ),
    (
        "list_processes",
        "list_processes",
        Reads,
        "List the processes of a sandbox, running or ended, the latest first.",
    ),
    (
        "get_process",
        "get_process",
        Reads,
        "Get a process of a sandbox: its status, or how and why it ended.",
    ),
    (
        "wait_process",
        "wait_process",
        Reads,
        "Wait until a process has ended, at most `timeout_ms`.",
    ),
    (
        "process_logs",
        "process_logs",
        Reads,
        "Read the output of a process: the end of it, or from `offset` on. Both streams in the order in which they came.",
    ),
    ("close_stdin", "close_stdin", Changes, "Close the standard input of a process."),
    (
        "stop_process",
        "stop_process",
        Changes,
        "Ask a process and all its descendants to end, and kill them after a grace time.",
    ),
    ("kill_process", "kill_process", Changes, "Kill a process and all its descendants."),
    (
        "list_ports",
        "list_ports",
        Reads,
        "List the open ports of a sandbox; with `wait_for` as soon as these ports are open, too.",
    ),
    (
        "sandbox_status",
        "sandbox_status",
        Reads,
        "Show what keeps a sandbox from being frozen, whether it is frozen, and when it will be. This does not thaw it.",
    ),
    (
        "stop_keeping_awake",
        "stop_keeping_awake",
        Changes,
        "End the keep-alive of the processes that have it now, at once or after a delay. No process is killed, and the \
         latest call counts.",
    ),
    ("list_templates", "list_templates", Reads, "List the templates that sandboxes are made from."),
    ("get_template", "get_template", Reads, "Get a template."),
    (
        "list_pools",
        "list_pools",
        Reads,
        "List the pools: how many sandboxes each template has ready and in use.",
    ),
    ("get_pool", "get_pool", Reads, "Get the pool of a template."),
    ("get_stats", "get_stats", Reads, "Get the statistics of the server and of each pool."),
    (
        "create_session",
        "create_session",
        Adds,
        "Create a session: a conversation with files that survive its sandbox. Use its sandbox by its `sandbox_id`.",
    ),
    ("list_sessions", "list_sessions", Reads, "List your sessions, newest first; for admins all."),
    ("get_session", "get_session", Reads, "Get a session."),
    (
        "send_turn",
        "send_turn",
        Changes,
        "Send a message to a session and wait for the answer of its harness. The shell takes it as a command line.",
    ),
    (
        "list_turns",
        "list_turns",
        Reads,
        "List the turns of a session: its messages and their results.",
    ),
    ("get_turn", "get_turn", Reads, "Get a turn of a session."),
    ("pause_session", "pause_session", Changes, "Pause a session; the next message resumes it."),
    ("resume_session", "resume_session", Changes, "Resume a paused or stopped session."),
    (
        "end_session",
        "end_session",
        Changes,
        "End a session at once, even if it is in use. Its files are deleted.",
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
