//! Prints images for people.

use images::{Collected, Progress};
use wire::{Image, Time};

use crate::output::{Output, Paint};
use crate::plain_text::plain;
use crate::relative_time;
use crate::table::Table;

/// Digits of an id that are shown.
const ID_DIGITS: usize = 12;

/// A number of bytes, in a readable unit.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

pub(super) fn progress(progress: &Progress) -> String {
    let Progress { layer, layers, entries, bytes } = progress;
    format!("layer {layer} of {layers}: {entries} entries, {}", size(*bytes))
}

fn names(image: &Image) -> String {
    let names: Vec<_> = image.names.iter().map(ToString::to_string).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

pub(super) fn table(images: &[Image], now: Time) -> Table {
    let mut table = Table::new(&["IMAGE", "ID", "LAYERS", "SIZE", "IMPORTED"]);
    for image in images {
        table.row([
            names(image),
            image.id.to_string()[..ID_DIGITS].to_owned(),
            image.layers.len().to_string(),
            size(image.bytes),
            relative_time::ago(image.imported_at, now),
        ]);
    }
    table
}

pub(super) fn one(image: &Image, output: &Output) {
    let config = &image.config;
    let words = |words: &[String]| words.join(" ");
    let lines = [
        ("names", names(image)),
        ("id", image.id.to_string()),
        ("size", size(image.bytes)),
        ("for", config.architecture.clone()),
        ("environment", words(&config.env)),
        ("entrypoint", words(&config.entrypoint)),
        ("command", words(&config.command)),
        ("directory", config.working_directory.clone()),
        ("user", config.user.clone()),
    ];
    let said = lines.into_iter().filter(|(_, text)| !text.is_empty());
    let layers = image.layers.iter().enumerate().map(|(n, layer)| {
        let digest = &layer.digest;
        let entries = layer.entries;
        ("layer", format!("{}: {digest}, {entries} entries, {}", n + 1, size(layer.bytes)))
    });
    for (word, text) in said.chain(layers) {
        let word = output.paint(Paint::Faint, &format!("{word:>11}"));
        output.say(&format!("{word}  {}", plain(&text)));
    }
}

/// Prints the result of an import: above all what was left out.
pub(super) fn imported(image: &Image, output: &Output) {
    let sum = |count: fn(&wire::ImageLayer) -> u64| image.layers.iter().map(count).sum::<u64>();
    let layers = image.layers.len();
    output.remark(&format!("{} in {layers} layer(s)", size(image.bytes)));
    for (count, what) in [
        (sum(|layer| layer.left_out), "devices, pipes or the like were left out"),
        (sum(|layer| layer.bits_dropped), "entries lost their setuid, setgid or sticky bits"),
        (sum(|layer| layer.attributes_dropped), "entries lost their extended attributes"),
    ] {
        if count > 0 {
            output.remark(&format!("{count} {what}"));
        }
    }
}

pub(super) fn collected(collected: &Collected, output: &Output) {
    for id in &collected.images {
        output.say(&id.to_string());
    }
    let (layers, freed) = (collected.layers, size(collected.bytes));
    output.remark(&format!("{layers} layer(s) removed, {freed} freed"));
    for id in &collected.in_use {
        output.remark(&format!("{id} has no name but stays: it is in use"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_sizes_have_a_readable_unit() {
        for (bytes, expected) in [
            (0, "0 B"),
            (9_999, "9999 B"),
            (10_000, "10 kB"),
            (123_456_789, "123 MB"),
            (64 << 30, "68 GB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }
}
