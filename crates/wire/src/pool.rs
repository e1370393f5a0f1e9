//! Templates and their pools.

use model::Template;
use model::stats::PoolStats;
use serde::{Deserialize, Serialize};

/// All templates, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TemplateList {
    /// The templates.
    pub templates: Vec<Template>,
}

/// All pools, in the order of their templates' names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolList {
    /// The pools.
    pub pools: Vec<PoolStats>,
}

/// A pool is to have another size. What is not given stays as it is.
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
