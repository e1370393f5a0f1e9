//! File permissions as octal digits.

/// The permissions, if these are some.
pub fn octal(text: &str) -> Option<u32> {
    let fits = text.bytes().all(|byte| byte.is_ascii_digit());
    u32::from_str_radix(text, 8).ok().filter(|mode| fits && *mode <= 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_octal() {
        for (text, mode) in [("0644", Some(0o644)), ("755", Some(0o755)), ("7777", Some(0o7777))] {
            assert_eq!(octal(text), mode);
        }
        for bad in ["", "8", "10000", "-1", "+1", "0o644", "rw"] {
            assert_eq!(octal(bad), None, "{bad}");
        }
    }
}
