//! Names and labels of our containers and volumes at the engine: labels say the node, the run and
//! the instance. What carries another node's label must never be touched.

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

    /// A carrier: a container that never runs, by which files get into a volume.
    pub(super) fn carrier(&self, number: u64) -> String {
        format!("shoal-{}-carrier-{}-{number}", self.node, self.epoch)
    }

    /// Whether a container of these names is ours. Labels alone do not prove it: an image made from
    /// a sandbox inherits them.
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

    /// The labels of everything that this run makes.
    pub(super) fn labels<M>(&self, instance: Option<InstanceId>) -> M
    where
        M: FromIterator<(String, String)>,
    {
        // All labels, also empty ones: they override labels of the image.
        let instance = instance.map(|instance| instance.to_string()).unwrap_or_default();
        let labels = [(NODE, self.node.clone()), (EPOCH, self.epoch.clone()), (INSTANCE, instance)];
        labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The engine's filter for what is of this run.
    pub(super) fn of_this_run(&self) -> Vec<String> {
        vec![format!("{NODE}={}", self.node), format!("{EPOCH}={}", self.epoch)]
    }

    /// The engine's filter for what is of this node, of any run.
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
    fn carrier_labels_name_no_sandbox() {
        let labels: std::collections::BTreeMap<_, _> = Names::new("node", "run-1").labels(None);
        assert_eq!(labels[INSTANCE], "");
        assert_eq!(instance_of(&labels), None);
    }
}
