//! Where the files of a template's workspaces are, and how their size is limited: the one place
//! that turns the settings of a template, given or left open, into what applies on a node. Values
//! in, values out. A given setting is never changed: it is applied or refused.

use serde::{Deserialize, Serialize};

use crate::error::{ErrorCode, Refusal};
use crate::template::{RuntimeKind, Template, WORKSPACE_MB_MIN, WorkspaceKind, WorkspaceLimit};

/// What enforces hard limits of workspaces on the disk of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HardLimits {
    /// The file system itself, by this means. It costs a launch nothing.
    FileSystem(&'static str),
    /// Only a file system of its own for each workspace, which costs each launch milliseconds: for
    /// templates that ask for it. The text says why the file system itself keeps none.
    Image(String),
    /// Nothing, and why.
    None(String),
}

/// Where the workspaces of a template are on a node, and how their size is limited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Placed {
    /// Where their files are.
    pub kind: WorkspaceKind,
    /// How their size is kept. The size of one in memory is always a hard limit.
    pub limit: WorkspaceLimit,
    /// Why, where the node chose what the template leaves open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Placed {
    /// The limit of workspaces on disk; none where they are in memory.
    pub const fn disk(&self) -> Option<WorkspaceLimit> {
        match self.kind {
            WorkspaceKind::Disk => Some(self.limit),
            WorkspaceKind::Memory => None,
        }
    }

    const fn in_memory(why: Option<String>) -> Self {
        Self { kind: WorkspaceKind::Memory, limit: WorkspaceLimit::Hard, why }
    }
}

/// Decides where the files of a template's workspaces are. `disk` is what keeps hard limits on the
/// disk of the node, or why sandboxes of the template's runtime can have no workspace there.
pub fn placed(template: &Template, disk: Result<&HardLimits, &str>) -> Result<Placed, Refusal> {
    let asked = &template.workspace;
    let hard = match (asked.kind, disk) {
        (Some(WorkspaceKind::Memory), _) => return Ok(Placed::in_memory(None)),
        (Some(WorkspaceKind::Disk), Err(why)) => {
            return Err(unsupported(format!("workspace.kind: {why}")));
        }
        (None, Err(why)) => {
            let why = format!("workspace.kind is not given, and disk is not possible: {why}");
            return Ok(Placed::in_memory(Some(why)));
        }
        (None, Ok(_)) if template.limits.workspace_mb < WORKSPACE_MB_MIN => {
            let why = format!(
                "workspace.kind is not given, and disk is not possible: limits.workspace_mb is \
                 below {WORKSPACE_MB_MIN}"
            );
            return Ok(Placed::in_memory(Some(why)));
        }
        (Some(WorkspaceKind::Disk) | None, Ok(hard)) => hard,
    };
    let (limit, why_limit) = limit_on_disk(template, hard)?;
    let why_kind = match asked.kind {
        Some(_) => None,
        None => Some("workspace.kind is not given, and disk is the default".to_owned()),
    };
    let reasons: Vec<_> = [why_kind, why_limit].into_iter().flatten().collect();
    let why = (!reasons.is_empty()).then(|| reasons.join("; "));
    Ok(Placed { kind: WorkspaceKind::Disk, limit, why })
}

/// How the size of a workspace on disk is kept, and why if the template leaves that open.
fn limit_on_disk(
    template: &Template,
    hard: &HardLimits,
) -> Result<(WorkspaceLimit, Option<String>), Refusal> {
    match (template.workspace.limit, hard) {
        (Some(WorkspaceLimit::Soft), _) => Ok((WorkspaceLimit::Soft, None)),
        (Some(WorkspaceLimit::Hard), HardLimits::FileSystem(_) | HardLimits::Image(_)) => {
            Ok((WorkspaceLimit::Hard, None))
        }
        (Some(WorkspaceLimit::Hard), HardLimits::None(why)) if template.limits.best_effort => {
            let why = format!(
                "the limit is soft, as limits.best_effort allows: a hard one is not possible ({why})"
            );
            Ok((WorkspaceLimit::Soft, Some(why)))
        }
        (Some(WorkspaceLimit::Hard), HardLimits::None(why)) => {
            Err(unsupported(format!("workspace.limit: a hard limit is not possible ({why})")))
        }
        (None, HardLimits::FileSystem(by)) => {
            let why = format!("workspace.limit is not given, and {by} enforces a hard limit");
            Ok((WorkspaceLimit::Hard, Some(why)))
        }
        (None, HardLimits::Image(why) | HardLimits::None(why)) => {
            let why = format!(
                "workspace.limit is not given, and the file system enforces no hard limit by itself \
                 ({why})"
            );
            Ok((WorkspaceLimit::Soft, Some(why)))
        }
    }
}

/// Why the sandboxes of a runtime that cannot use the disk have their workspaces in memory.
pub fn in_memory_only(runtime: RuntimeKind) -> String {
    format!("sandboxes of the runtime {} have their workspaces in memory", runtime.as_str())
}

fn unsupported(cause: String) -> Refusal {
    Refusal::new(ErrorCode::Unsupported, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TemplateName;
    use WorkspaceKind::{Disk, Memory};
    use WorkspaceLimit::{Hard, Soft};

    fn template(kind: Option<WorkspaceKind>, limit: Option<WorkspaceLimit>) -> Template {
        let mut template = Template::named(TemplateName::new("t").unwrap());
        (template.workspace.kind, template.workspace.limit) = (kind, limit);
        template
    }

    fn grounds() -> [HardLimits; 3] {
        let why = || "quotas are off".to_owned();
        [HardLimits::FileSystem("project quota"), HardLimits::Image(why()), HardLimits::None(why())]
    }

    #[track_caller]
    fn gives(
        asked: (Option<WorkspaceKind>, Option<WorkspaceLimit>),
        ground: &HardLimits,
        expected: (WorkspaceKind, WorkspaceLimit),
    ) -> Option<String> {
        let found = placed(&template(asked.0, asked.1), Ok(ground)).unwrap();
        assert_eq!((found.kind, found.limit), expected, "{asked:?} on {ground:?}");
        found.why
    }

    #[test]
    fn workspace_defaults_to_disk_with_the_limit_that_the_file_system_enforces() {
        let [quota, image, none] = grounds();
        for kind in [None, Some(Disk)] {
            gives((kind, None), &quota, (Disk, Hard)).unwrap();
            for ground in [&image, &none] {
                let why = gives((kind, None), ground, (Disk, Soft)).unwrap();
                assert!(why.contains("workspace.limit is not given"), "{why}");
                assert!(why.contains("quotas are off"), "{why}");
            }
        }
        let why = gives((None, Some(Soft)), &quota, (Disk, Soft)).unwrap();
        assert!(why.contains("disk is the default") && !why.contains("limit"), "{why}");
    }

    #[test]
    fn workspace_settings_that_are_given_apply_or_are_refused() {
        let [quota, image, none] = grounds();
        for ground in [&quota, &image] {
            assert_eq!(gives((Some(Disk), Some(Hard)), ground, (Disk, Hard)), None);
        }
        for ground in [&quota, &image, &none] {
            assert_eq!(gives((Some(Disk), Some(Soft)), ground, (Disk, Soft)), None);
            assert_eq!(gives((Some(Memory), None), ground, (Memory, Hard)), None);
        }
        for kind in [None, Some(Disk)] {
            let refusal = placed(&template(kind, Some(Hard)), Ok(&none)).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::Unsupported);
            assert!(refusal.cause.starts_with("workspace.limit: "), "{refusal}");
            let mut agrees = template(kind, Some(Hard));
            agrees.limits.best_effort = true;
            let found = placed(&agrees, Ok(&none)).unwrap();
            assert_eq!(found.disk(), Some(Soft));
            assert!(found.why.unwrap().contains("best_effort"));
        }
    }

    #[test]
    fn workspace_defaults_to_memory_without_a_disk_and_says_why() {
        let disk = Err("containers have none");
        let found = placed(&template(None, None), disk).unwrap();
        assert_eq!((found.kind, found.disk()), (Memory, None));
        assert!(found.why.unwrap().ends_with("containers have none"));
        let refusal = placed(&template(Some(Disk), None), disk).unwrap_err();
        assert_eq!(refusal.cause, "workspace.kind: containers have none");
        assert_eq!(placed(&template(Some(Memory), None), disk).unwrap().why, None);
        let mut tiny = template(None, None);
        tiny.limits.workspace_mb = 3;
        let found = placed(&tiny, Ok(&grounds()[0])).unwrap();
        assert_eq!(found.kind, Memory);
        assert!(found.why.unwrap().contains("limits.workspace_mb"));
    }
}
