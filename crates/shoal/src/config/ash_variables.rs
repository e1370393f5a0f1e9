//! Variables of Ash that are set and have no effect here: each is named at the start, with what to
//! do in its place, so that a server that took over from Ash never ignores a setting in silence.

use super::host_context::HostContext;
use super::keys;
use super::settings::Config;

/// Variables of Ash that count in another way than as one of our keys, or that its clients read.
const OTHERS_READ: [&str; 4] = ["ASH_HOST", "ASH_PORT", "ASH_API_KEY", "ASH_SERVER_URL"];
/// Variables that orchestrators set for a service called `ash`.
const FOREIGN: [&str; 2] = ["ASH_PORT_", "ASH_SERVICE_"];
/// Variables of other names that Ash passes on to its sandboxes.
const PASSED_BY_ASH: [&str; 5] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_CUSTOM_HEADERS",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_EXECUTABLE",
];
/// Variables with our names that sessions get only if they are named in `ash.pass_env`.
const PASSED: [&str; 3] = ["ASH_DEBUG_TIMING", "ASH_REAL_SDK", "ASH_PERMISSION_MODE"];
const ORIGINS: &str = "ALLOWED_ORIGINS";

/// What there is in place of a variable.
fn instead(name: &str) -> &'static str {
    match name {
        "ASH_MODE" => "a node is always standalone",
        "ASH_DATABASE_URL" => "records are in SQLite beneath server.data_dir",
        "ASH_SNAPSHOT_URL" | "ASH_S3_REGION" | "ASH_FILE_STORE_URL" => {
            "files of sessions are beneath server.data_dir; `shoal backup` copies them"
        }
        "ASH_CREDENTIAL_KEY" => "there are no stored credentials; give them as extraEnv",
        "ASH_INTERNAL_SECRET" => "there are no internal routes",
        "ASH_SANDBOX_UID" | "ASH_SANDBOX_GID" => "the runtime of a template chooses the user",
        "ASH_MAX_ATTACHMENT_SIZE" => "there are no attachments; write files",
        "ASH_TELEMETRY_URL" | "ASH_TELEMETRY_KEY" | "ASH_CLOUD_URL" => {
            "the server sends nothing; read /metrics and the events"
        }
        "ASH_DASHBOARD_ENABLED" | "ASH_DASHBOARD_PATH" => "there is no dashboard",
        _ if name.starts_with("ASH_RUNNER_") => "there are no runners",
        _ => "it is not known here",
    }
}

/// One line for each variable that is set and changes nothing. Without `--ash` the variables are
/// meant for Ash itself.
pub(super) fn without_effect(config: &Config, context: &HostContext) -> Vec<String> {
    if config.ash.listen.is_none() {
        return Vec::new();
    }
    let is_set = |name: &&String| context.variable(name).is_some();
    let is_passed = |name: &str| config.ash.pass_env.iter().any(|passed| passed == name);
    let line = |name: &String| {
        let why = if PASSED.contains(&&**name) || PASSED_BY_ASH.contains(&&**name) {
            "sessions get it only if ash.pass_env names it"
        } else if name == ORIGINS {
            "set server.cors_origins"
        } else {
            instead(name)
        };
        format!("{name} is set but has no effect: {why}")
    };
    let names = context.env.keys().filter(is_set).filter(|name| !is_passed(name));
    names.filter(|name| is_of_ash(name) && !is_read(name, context)).map(line).collect()
}

fn is_of_ash(name: &str) -> bool {
    name.starts_with("ASH_") || name == ORIGINS || PASSED_BY_ASH.contains(&name)
}

fn is_read(name: &str, context: &HostContext) -> bool {
    let ours = keys::OF_ASH.iter().chain(&keys::OF_ASH_WHERE_ASKED);
    ours.map(|(name, _)| *name).chain(OTHERS_READ).any(|read| read == name)
        || FOREIGN.iter().any(|foreign| name.starts_with(foreign))
        // It says what is so.
        || (name == "ASH_MODE"
            && context.variable(name).is_some_and(|mode| mode == "standalone"))
}
