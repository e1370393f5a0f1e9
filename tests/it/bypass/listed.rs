//! The page of all 75 cases is true: each is on it once, and is tried by what it names.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};

use super::ATTEMPTS;
use crate::repo;

const PAGE: &str = "docs/bypasses.md";
const CASES: u64 = 75;
/// Where the cases that a program tries are run.
const RUN: &str = include_str!("../native/bypass.rs");

/// The rows of the page: the number of the case, and its proof.
fn rows(page: &str) -> Vec<(u64, &str)> {
    page.lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').collect();
            let (number, proof) = (cells.get(1)?, cells.get(4)?);
            Some((number.trim().parse().ok()?, *proof))
        })
        .collect()
}

/// What stands in backticks behind this word.
fn named<'a>(proof: &'a str, word: &str) -> Vec<&'a str> {
    proof.split('`').skip(1).step_by(2).filter_map(|code| code.strip_prefix(word)).collect()
}

/// The cases that a function of `native/bypass.rs` runs.
fn run_by(function: &str) -> BTreeSet<u64> {
    let after = RUN.split_once(&format!("fn {function}()")).map_or("", |(_, after)| after);
    let list = after.split_once("&[").map_or("", |(_, list)| list);
    let list = list.split_once(']').map_or("", |(list, _)| list);
    list.split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

#[test]
fn every_way_around_a_policy_is_listed_and_tried() -> Result<()> {
    let page = std::fs::read_to_string(repo::root().join(PAGE)).context(PAGE)?;
    let rows = rows(&page);
    let numbers: Vec<u64> = rows.iter().map(|(number, _)| *number).collect();
    ensure!(numbers == (1..=CASES).collect::<Vec<_>>(), "the cases of {PAGE}: {numbers:?}");
    let outside = repo::files(&["scripts/outside"], &[".py"])?;
    let program = ATTEMPTS.concat();
    for (number, proof) in rows {
        let is_inside = proof.trim_start().starts_with("inside, ");
        let written = program.contains(&format!("@case({number})\n"));
        ensure!(is_inside == written, "case {number} is tried inside, or its row says so wrongly");
        let functions = named(proof, "fn:");
        let first = functions.first().copied().unwrap_or_default();
        ensure!(!is_inside || run_by(first).contains(&number), "{first} does not run {number}");
        let checks = named(proof, "check:");
        ensure!(!functions.is_empty() || !checks.is_empty(), "case {number} has no proof");
        for check in checks {
            let printed = format!("\"{check}\"");
            let found = outside.iter().any(|file| file.text.contains(&printed));
            ensure!(found, "case {number}: no test outside prints {check:?}");
        }
    }
    Ok(())
}
