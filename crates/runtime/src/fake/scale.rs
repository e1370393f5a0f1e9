//! The scale file of a fake sandbox: the same syntax as in a guest, without a file.

use super::sandbox::FakeSandbox;
use crate::inside::ScaleNote;

/// Where programs find it.
pub(crate) const SCALE_FILE: &str = "/run/shoal/scale";

/// The keep-alive counts.
#[derive(Debug, Default)]
pub(crate) struct Scale {
    scale: u32,
    processes: u32,
    last_seq: u64,
    /// The note that last dropped all keep-alives: process counts of callers that have not seen it
    /// are out of date.
    last_drop: u64,
}

impl Scale {
    /// What the file shows.
    pub(crate) fn shown(&self) -> Vec<u8> {
        format!("={}\n", self.scale.saturating_add(self.processes)).into_bytes()
    }

    pub(crate) fn show_holds(&mut self, processes: u32, seen: u64) {
        if seen >= self.last_drop {
            self.processes = processes;
        }
    }

    /// Applies one write, and returns a note if it changed anything.
    fn write(&mut self, text: &[u8]) -> Option<ScaleNote> {
        let (before, mut drops) = (self.scale, false);
        let text = String::from_utf8_lossy(text);
        for word in text.split_inclusive(['+', '-', '=']).collect::<Vec<_>>().windows(2) {
            let sign = word[0].chars().last();
            let digits: String = word[1].chars().take_while(char::is_ascii_digit).collect();
            self.take(sign, digits.parse().ok(), &mut drops);
        }
        // A sign at the very end has nothing behind it.
        if let Some(sign) = text.chars().last().filter(|last| "+-=".contains(*last)) {
            self.take(Some(sign), None, &mut drops);
        }
        if !drops && self.scale == before {
            return None;
        }
        self.last_seq += 1;
        if drops {
            self.processes = 0;
            self.last_drop = self.last_seq;
        }
        Some(ScaleNote { seq: self.last_seq, scale: self.scale, drops })
    }

    fn take(&mut self, sign: Option<char>, number: Option<u32>, drops: &mut bool) {
        match (sign, number) {
            (Some('+'), number) => self.scale = self.scale.saturating_add(number.unwrap_or(1)),
            (Some('-'), number) => self.scale = self.scale.saturating_sub(number.unwrap_or(1)),
            (Some('='), Some(number)) => {
                self.scale = number;
                *drops = true;
            }
            (_, _) => {}
        }
    }
}

impl FakeSandbox {
    /// A program writes to the scale file.
    pub(crate) fn write_scale(&self, text: &[u8]) {
        let note = self.state().scale.write(text);
        if let (Some(note), Some(world)) = (note, self.world.upgrade()) {
            world.scale.report(self.spec.instance, note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_file_writes_are_counted() {
        let mut scale = Scale::default();
        for (text, shown, drops) in [
            ("+\n", "=1\n", Some(false)),
            ("+3 -\n", "=3\n", Some(false)),
            ("++", "=5\n", Some(false)),
            ("x", "=5\n", None),
            ("", "=5\n", None),
            ("=2\n+", "=3\n", Some(true)),
            ("-9", "=0\n", Some(false)),
            ("-", "=0\n", None),
        ] {
            let noted = scale.write(text.as_bytes()).map(|note| note.drops);
            assert_eq!(noted, drops, "{text:?}");
            assert_eq!(scale.shown(), shown.as_bytes(), "{text:?}");
        }
    }
}
