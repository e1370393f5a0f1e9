//! The log line about a start, with the text of Ash: its users look for it.

use engine::Recovery;

/// Writes the line about sandboxes that an earlier run left, if there are some.
pub fn log_recovery(recovery: &Recovery) {
    if let Some(line) = line(recovery) {
        tracing::info!("{line}");
    }
}

fn line(recovery: &Recovery) -> Option<String> {
    let cold = recovery.marked_cold;
    (cold > 0).then(|| format!("Startup: marked {cold} stale sandbox(es) as cold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_that_are_cold_now_are_told_in_the_words_of_ash() {
        let found = |marked_cold| Recovery { marked_cold, ..Recovery::default() };
        assert_eq!(line(&found(0)), None);
        let expected = "Startup: marked 3 stale sandbox(es) as cold";
        assert_eq!(line(&found(3)).as_deref(), Some(expected));
    }
}
