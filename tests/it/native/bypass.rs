//! Ways around the policy of a native sandbox, tried from inside. What is tried, and what must come of
//! it, is the same for every runtime.

use anyhow::Result;
use runtime::{NetworkAbility, Runtime as _};

use super::node::{Node, on_node_within, skip, slowed};
use crate::bypass::Outside;

/// Tries these cases on a node of their own.
fn tried(cases: &[u64]) -> Result<()> {
    on_node_within(
        slowed(std::time::Duration::from_mins(2)),
        |_| {},
        async |node: &Node| {
            match node.native().capabilities().network {
                NetworkAbility::Transparent => {}
                NetworkAbility::ProxyOnly | NetworkAbility::None => {
                    return skip("no tables of nf_tables with tproxy");
                }
            }
            let (sandbox, other) = (node.sandbox().await?, node.sandbox().await?);
            Outside::start().await?.try_all(&sandbox, &other, cases).await
        },
    )
}

#[test]
fn no_address_leads_around_the_policy() -> Result<()> {
    tried(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])
}

#[test]
fn no_name_leads_around_the_policy() -> Result<()> {
    tried(&[15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27])
}

#[test]
fn no_question_for_a_name_leads_around_the_policy() -> Result<()> {
    tried(&[28, 29, 30, 31, 32, 33])
}

#[test]
fn no_greeting_leads_around_the_policy() -> Result<()> {
    tried(&[34, 35, 36, 37, 38, 39, 40, 41, 42, 45])
}

#[test]
fn no_request_leads_around_the_policy() -> Result<()> {
    tried(&[46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56])
}

#[test]
fn no_other_socket_and_nothing_of_ours_leads_around_the_policy() -> Result<()> {
    tried(&[57, 60, 62, 63, 64])
}
