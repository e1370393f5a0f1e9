//! The server for clients of Blaxel: the template of their sandboxes. It starts nothing before the
//! first request.

use api::BlaxelSettings;
use engine::Engine;
use model::TemplateName;

use crate::config::Config;

/// The settings of the dialect.
pub(super) fn settings(config: &Config) -> BlaxelSettings {
    let blaxel = &config.blaxel;
    BlaxelSettings { template: blaxel.template.clone(), keyless: blaxel.keyless }
}

/// Warns at the start if the template does not exist. It may still be made later.
pub(super) fn warn_if_template_missing(engine: &Engine, config: &Config) {
    let template = config.blaxel.template.as_str();
    let known = TemplateName::new(template).is_ok_and(|name| engine.template(&name).is_some());
    if config.blaxel.listen.is_some() && !known {
        tracing::warn!(
            template,
            "the template for clients of Blaxel does not exist: their requests are refused until \
             `shoal templates put` makes it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blaxel_settings_are_passed_on() {
        let mut config = Config::default();
        assert_eq!(settings(&config), BlaxelSettings::default());
        config.blaxel.template = "web".to_owned();
        config.blaxel.keyless = true;
        let expected = BlaxelSettings { template: "web".to_owned(), keyless: true };
        assert_eq!(settings(&config), expected);
    }
}
