//! The filter as a program inside meets it: every call that is not on the list is made for real,
//! from within a sandbox, and fails exactly as the policy says.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use jail::seccomp::{Arguments, Policy, Rule, Test, Verdict};
use serde_json::{Value, json};

use super::node::{Node, on_node};

const SCRIPT: &str = include_str!("system_calls.py");

/// Every number that any kernel knows, and some that none does.
const NUMBERS: std::ops::RangeInclusive<u32> = 0..=600;

/// What marks a call of x32.
const X32: u32 = 0x4000_0000;

/// Calls that bypass the filter on recent kernels (`uretprobe`, `uprobe`): a process that makes
/// them without having been led there by the kernel dies of an illegal instruction, or gets an
/// error.
#[cfg(target_arch = "x86_64")]
const PAST_THE_FILTER: &[u32] = &[335, 336];
#[cfg(not(target_arch = "x86_64"))]
const PAST_THE_FILTER: &[u32] = &[];

/// Calls with arguments for which the policy has an error, with that error.
fn refused(policy: &Policy) -> Vec<(u32, [u64; 6], u16)> {
    let mut calls = Vec::new();
    for number in NUMBERS {
        match policy.rule(number) {
            // Arguments that no call could do anything with.
            Rule::Always(Verdict::Errno(errno)) => calls.push((number, [u64::MAX; 6], errno)),
            Rule::Always(Verdict::Allow | Verdict::Kill) => {}
            Rule::Arguments(clauses) => {
                for arguments in interesting(clauses) {
                    if let Verdict::Errno(errno) = clauses.verdict(&arguments) {
                        calls.push((number, arguments, errno));
                    }
                }
            }
        }
    }
    calls
}

/// Arguments on every side of every clause, in every combination, some with a dirty upper half.
fn interesting(clauses: &Arguments) -> Vec<[u64; 6]> {
    let mut all = vec![[0; 6]];
    for position in 0..6 {
        let about =
            clauses.clauses.iter().filter(|clause| usize::from(clause.argument) == position);
        let values: BTreeSet<u32> = about
            .flat_map(|clause| match clause.test {
                Test::Is(number) => vec![number],
                Test::Bits { are, .. } => vec![are],
                Test::AnyOf(bits) => (0..32).map(|bit| bits & 1 << bit).collect(),
                Test::NoneOf(numbers) => [numbers, &[0xfff]].concat(),
            })
            .chain([0, 1])
            .collect();
        let dirty = values.iter().map(|value| u64::from(*value) | 0xdead_0000_0000_0000);
        let values: Vec<u64> = values.iter().copied().map(u64::from).chain(dirty).collect();
        // Where no clause looks there is nothing to vary.
        if values.len() > 4 {
            all = all
                .iter()
                .flat_map(|arguments| {
                    values.iter().map(move |value| {
                        let mut arguments = *arguments;
                        arguments[position] = *value;
                        arguments
                    })
                })
                .collect();
        }
    }
    all
}

#[test]
fn every_call_that_is_not_allowed_is_refused_inside_as_the_policy_says() -> Result<()> {
    let policy = Policy::sandbox();
    let refused = refused(&policy);
    let numbers: BTreeSet<u32> = refused.iter().map(|(number, ..)| *number).collect();
    ensure!(numbers.len() > 250, "only {} numbers are refused", numbers.len());
    // Half the calls that exist are on the list: a policy that refuses all would pass as well.
    let allowed = NUMBERS.filter(|number| policy.rule(*number) == Rule::Always(Verdict::Allow));
    ensure!(allowed.count() > 200, "hardly anything is allowed");
    let foreign: Vec<u32> = if cfg!(target_arch = "x86_64") {
        NUMBERS.map(|number| number | X32).collect()
    } else {
        Vec::new()
    };
    let of_32_bits: Vec<u32> = (0..=470).collect();
    let (past_the_filter, refused): (Vec<_>, Vec<_>) =
        refused.into_iter().partition(|(number, ..)| PAST_THE_FILTER.contains(number));
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let mut tried = 0;
            // An argument of a program may not be long.
            for some in refused.chunks(500) {
                let some = json!({ "refused": some, "past_the_filter": [], "foreign": [], "of_32_bits": [] });
                tried += count_tried(node, &sandbox, &some).await?;
            }
            let others = json!({
                "refused": [], "past_the_filter": past_the_filter, "foreign": foreign, "of_32_bits": of_32_bits,
            });
            tried += count_tried(node, &sandbox, &others).await?;
            ensure!(tried >= refused.len() + foreign.len(), "only {tried} were tried");
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}

/// Has calls made, all of which must end as they should; says how many there were.
async fn count_tried(
    node: &Node,
    sandbox: &std::sync::Arc<dyn runtime::Sandbox>,
    given: &Value,
) -> Result<usize> {
    let said: Value =
        serde_json::from_str(&node.python(sandbox, SCRIPT, &[&given.to_string()]).await?)?;
    ensure!(said["wrong"] == json!([]), "not as the policy says: {}", said["wrong"]);
    Ok(usize::try_from(said["tried"].as_u64().context("it says how many")?)?)
}
