//! Text of others for a terminal: names of files, output lines, labels. Characters that move the
//! cursor, or that show a text in another order than it has, are written as escapes, so that a name
//! cannot look like another one. It must never be used for what scripts read.

/// Whether a character is invisible, or changes how others are shown.
fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Spaces without width, marks and overrides of direction, separators of lines.
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// The text in one line, with escapes such as `\u{202e}` for what would deceive.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_deceptive(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The same for a message, which may have several lines.
pub fn plain_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(plain).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deceptive_characters_are_escaped_and_others_are_not() {
        for (text, shown) in [
            ("report\u{202e}gpj.exe", "report\\u{202e}gpj.exe"),
            ("a\u{2066}b\u{200b}c\u{feff}", "a\\u{2066}b\\u{200b}c\\u{feff}"),
            ("\u{1b}[31mred\n\u{9b}2J", "\\u{1b}[31mred\\n\\u{9b}2J"),
            ("grün שלום 👩‍💻 \\", "grün שלום 👩‍💻 \\"),
        ] {
            assert_eq!(plain(text), shown);
        }
        assert_eq!(plain_lines("a\nb\u{202e}"), "a\nb\\u{202e}");
    }
}
