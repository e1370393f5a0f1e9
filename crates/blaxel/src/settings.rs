//! Settings of the dialect.

/// Settings of the dialect of Blaxel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlaxelSettings {
    /// The template of its sandboxes, unless the image that is asked for is the name of another.
    pub template: String,
    /// Whether the listener of its own takes requests without a key. Only ever on loopback.
    pub keyless: bool,
}

impl Default for BlaxelSettings {
    fn default() -> Self {
        Self { template: "default".to_owned(), keyless: false }
    }
}
