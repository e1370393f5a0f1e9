//! Whether the machine has the memory that sandboxes may use by their limits. Pure.

use jail::groups::NodeCaps;
use model::Template;

use super::host_checks::Finding;
use crate::config::Config;

const NAME: &str = "memory of all sandboxes";
const REMEDY: &str = "set node.memory_budget_mb, or lower node.max_live or limits.memory_mb; this \
                      matters only if many sandboxes use all of their memory at once";

/// The finding for a configuration on this machine.
pub(super) fn finding(config: &Config) -> Finding {
    let templates = config.templates.clone().unwrap_or_else(Config::built_in);
    let budget_mb = config.node.memory_budget_mb;
    let usable_mb = NodeCaps::of_machine().memory_bytes >> 20;
    finding_for(&templates, config.node.max_live, budget_mb, usable_mb)
}

fn finding_for(
    templates: &[Template],
    max_live: u32,
    budget_mb: Option<u64>,
    usable_mb: u64,
) -> Finding {
    let largest = templates.iter().map(|template| template.limits.memory_mb).max().unwrap_or(0);
    let all_mb = u64::from(max_live) * u64::from(largest);
    let (most_mb, by) = match budget_mb {
        Some(budget) if budget < all_mb => (budget, "node.memory_budget_mb".to_owned()),
        Some(_) | None => (all_mb, format!("{max_live} of up to {largest} MiB")),
    };
    let why =
        format!("live sandboxes may use {most_mb} MiB ({by}), and {usable_mb} MiB are for them");
    if most_mb <= usable_mb {
        return Finding::yes(NAME, why);
    }
    let times_tenths = most_mb * 10 / usable_mb.max(1);
    let (whole, tenth) = (times_tenths / 10, times_tenths % 10);
    let why = format!(
        "{why}: {whole}.{tenth} times as much; if they use it, the kernel ends programs in \
         sandboxes"
    );
    Finding::partly(NAME, why, REMEDY)
}

#[cfg(test)]
mod tests {
    use model::TemplateName;

    use super::*;
    use crate::doctor::host_checks::State;

    fn templates(memory_mb: &[u32]) -> Vec<Template> {
        let named = |memory_mb: &u32| {
            let mut template = Template::named(TemplateName::new("t").unwrap());
            template.limits.memory_mb = *memory_mb;
            template
        };
        memory_mb.iter().map(named).collect()
    }

    #[test]
    fn more_memory_than_the_machine_has_is_said_with_its_factor() {
        let templates = templates(&[128, 512]);
        let found = finding_for(&templates, 100, None, 20_480);
        assert_eq!(found.state, State::Partly);
        assert!(found.why.contains("51200 MiB (100 of up to 512 MiB)"), "{}", found.why);
        assert!(found.why.contains("2.5 times"), "{}", found.why);
        assert_eq!(finding_for(&templates, 40, None, 20_480).state, State::Yes);
        let found = finding_for(&templates, 100, Some(20_000), 20_480);
        assert_eq!(found.state, State::Yes);
        assert!(found.why.contains("node.memory_budget_mb"), "{}", found.why);
    }
}
