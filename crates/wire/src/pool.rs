//! Templates and their pools.

use model::stats::PoolStats;
use model::{Placed, Template, TemplateName};
use serde::{Deserialize, Serialize};

/// All templates, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TemplateList {
    /// The templates, as they were put.
    pub templates: Vec<Template>,
    /// What this node decided for settings that they leave open, in the same order.
    #[serde(default)]
    pub effective: Vec<EffectiveTemplate>,
}

/// What a node decided for the open settings of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EffectiveTemplate {
    /// The template.
    pub template: TemplateName,
    /// Where the files of its workspaces are; absent if the node cannot satisfy the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Placed>,
    /// The time that a sandbox must have left to live to be handed out.
    #[serde(default)]
    pub acquire_min_remaining_ttl_ms: u64,
}

/// All pools, in the order of their templates' names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolList {
    /// The pools.
    pub pools: Vec<PoolStats>,
}

/// A request to change the size of a pool. A field that is not given stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolResize {
    /// Warm sandboxes kept ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_size: Option<u32>,
    /// How many more may exist while in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_overflow: Option<u32>,
}
