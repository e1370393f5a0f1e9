//! What our things are called at the engine, and how they are found again: by labels that say whose
//! they are (the node), since when (the run) and which. What carries another node's label is never
//! ours to touch.

use model::InstanceId;

/// The label that says which node something belongs to.
pub(super) const NODE: &str = "shoal.node";
/// The label that says which run made it.
pub(super) const EPOCH: &str = "shoal.epoch";
/// The label that says which sandbox it is.
pub(super) const INSTANCE: &str = "shoal.instance";

/// The names of one run.
#[derive(Debug, Clone)]
pub(super) struct Names {
    node: String,
    epoch: String,
}

impl Names {
    pub(super) fn new(node: &str, epoch: &str) -> Self {
        Self { node: node.to_owned(), epoch: epoch.to_owned() }
    }

    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The container of a sandbox.
    pub(super) fn container(&self, instance: InstanceId) -> String {
        format!("shoal-{}-{instance}", self.node)
    }

    /// A container that never runs, by which files get into a volume.
    pub(super) fn carrier(&self, number: u64) -> String {
        format!("shoal-{}-carrier-{}-{number}", self.node, self.epoch)
    }

    /// Whether a container of these names is ours: labels alone do not tell, since whoever makes an
    /// image of a sandbox gets them along with it.
    pub(super) fn is_ours(&self, names: &[String], instance: Option<InstanceId>) -> bool {
        let ours = |name: &str| match instance {
            Some(instance) => name == self.container(instance),
            None => name.starts_with(&format!("shoal-{}-carrier-", self.node)),
        };
        names.iter().any(|name| ours(name.trim_start_matches('/')))
    }

    /// The volume with this guest.
    pub(super) fn guest_volume(&self, hash: &str) -> String {
        format!("shoal-guest-{}-{hash}", self.node)
    }

    /// What is put on everything that this run makes.
    pub(super) fn labels<M>(&self, instance: Option<InstanceId>) -> M
    where
        M: FromIterator<(String, String)>,
    {
        // All of them, also where there is nothing to say: an image may have labels of its own.
        let instance = instance.map(|instance| instance.to_string()).unwrap_or_default();
        let labels = [(NODE, self.node.clone()), (EPOCH, self.epoch.clone()), (INSTANCE, instance)];
        labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// What is ours, by the words of the engine's filters.
    pub(super) fn of_this_run(&self) -> Vec<String> {
        vec![format!("{NODE}={}", self.node), format!("{EPOCH}={}", self.epoch)]
    }

    /// What is this node's, whichever run made it.
    pub(super) fn of_this_node(&self) -> Vec<String> {
        vec![format!("{NODE}={}", self.node)]
    }
}

/// Which sandbox labels are about.
pub(super) fn instance_of<'a>(
    labels: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Option<InstanceId> {
    labels.into_iter().find(|(name, _)| *name == INSTANCE)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_ours_by_name_and_label_together() {
        let names = Names::new("node", "run-1");
        let instance = InstanceId::from_u128(7);
        let own = names.container(instance);
        for (name, instance, expected) in [
            (own.as_str(), Some(instance), true),
            (&format!("/{own}"), Some(instance), true),
            (own.as_str(), Some(InstanceId::from_u128(8)), false),
            (own.as_str(), None, false),
            ("happy_turing", Some(instance), false),
            (&names.carrier(3), None, true),
            ("shoal-node2-carrier-run-1-3", None, false),
        ] {
            assert_eq!(names.is_ours(&[name.to_owned()], instance), expected, "{name}");
        }
    }

    #[test]
    fn what_carries_files_says_that_it_is_no_sandbox() {
        let labels: std::collections::BTreeMap<_, _> = Names::new("node", "run-1").labels(None);
        assert_eq!(labels[INSTANCE], "");
        assert_eq!(instance_of(&labels), None);
    }
}
