//! The server as clients of Blaxel meet it: which template their sandboxes are of. Nothing is started
//! for them before they ask.

use api::BlaxelSettings;
use engine::Engine;
use model::TemplateName;

use crate::config::Config;

/// What the dialect is to know.
pub(super) fn settings(config: &Config) -> BlaxelSettings {
    let blaxel = &config.blaxel;
    BlaxelSettings { template: blaxel.template.clone(), keyless: blaxel.keyless }
}

/// Says it at the start if there is no such template: it may still be made.
pub(super) fn warn_if_template_missing(engine: &Engine, config: &Config) {
    let template = config.blaxel.template.as_str();
    let known = TemplateName::new(template).is_ok_and(|name| engine.template(&name).is_some());
    if config.blaxel.listen.is_some() && !known {
        tracing::warn!(
            template,
            "there is no such template: requests for its sandbox are refused until `shoal templates \
             put` makes it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_configured_is_passed_on() {
        let mut config = Config::default();
        assert_eq!(settings(&config), BlaxelSettings::default());
        config.blaxel.template = "web".to_owned();
        config.blaxel.keyless = true;
        let told = BlaxelSettings { template: "web".to_owned(), keyless: true };
        assert_eq!(settings(&config), told);
    }
}
