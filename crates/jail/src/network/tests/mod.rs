//! What is sent to the kernel, compared with what the `nft` program sent for the same text, and what
//! the kernel answered.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use super::message::{self, attributes};
use super::refused::{Answer, read};
use super::{ALL_PORTS, AddressRule, Rules, table};

/// Sent by nftables 1.0.6 for a table with the rules of [`rules`].
const REPLACED: &str = include_str!("replaced.hex");

/// Sent by the same for a flush of the chain and the rules of an open policy.
const CHANGED: &str = include_str!("changed.hex");

/// What the kernel answered when it was asked for two refused addresses.
const REFUSED: &str = include_str!("refused.hex");

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|letter| letter.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// One line for each message and each attribute, so that a difference can be read.
fn shown(bytes: &[u8]) -> String {
    const NAMES_OF_NESTED: &[u16] = &[1, 2, 3, 4, 5, 9];
    let mut text = String::new();
    for message in message::received(bytes) {
        let _ = writeln!(text, "message {:x} {:?}", message.kind, &message.body[..4]);
        for (kind, value) in attributes(&message.body[4..]) {
            let _ = writeln!(text, "  {kind} {value:?} {}", NAMES_OF_NESTED.contains(&kind));
        }
    }
    text
}

fn rule(first: [u8; 4], bits: u8, ports: (u16, u16)) -> AddressRule {
    AddressRule { first: Ipv4Addr::from(first), bits, ports }
}

fn rules() -> Rules {
    Rules::Addresses(vec![
        rule([10, 1, 0, 0], 16, (8000, 8100)),
        rule([10, 2, 3, 4], 32, (5432, 5432)),
        rule([172, 16, 0, 0], 12, ALL_PORTS),
    ])
}

#[test]
fn the_table_is_sent_as_nft_sends_it() {
    let (ours, theirs) = (table::replaced(&rules()), bytes(REPLACED));
    assert_eq!(shown(&ours), shown(&theirs));
    assert_eq!(ours, theirs);
}

#[test]
fn a_first_table_is_the_same_and_removes_nothing() {
    let all = |bytes: &[u8]| -> Vec<(u16, Vec<u8>)> {
        message::received(bytes).map(|one| (one.kind, one.body.to_vec())).collect()
    };
    let (first, again) = (all(&table::first(&rules())), all(&table::replaced(&rules())));
    // Only that a table is made and deleted before its contents is left out.
    assert_eq!(first[..2], again[..2]);
    assert_eq!(first[2..], again[4..]);
}

#[test]
fn a_change_is_one_batch_as_nft_sends_it() {
    let (ours, theirs) = (table::changed(&Rules::Open), bytes(CHANGED));
    assert_eq!(shown(&ours), shown(&theirs));
    assert_eq!(ours, theirs);
}

#[test]
fn refused_addresses_are_read() {
    let mut found = Vec::new();
    assert_eq!(read(&bytes(REFUSED), &mut found), Answer::More);
    found.sort_unstable();
    let expected = [([10, 0, 0, 1], 80), ([169, 254, 169, 254], 443)];
    assert_eq!(found, expected.map(|(address, port)| (Ipv4Addr::from(address), port)));
}

#[test]
fn an_answer_that_is_cut_anywhere_is_read_without_a_panic() {
    let answer = bytes(REFUSED);
    for length in 0..answer.len() {
        let mut found = Vec::new();
        assert_eq!(read(&answer[..length], &mut found), Answer::More);
    }
}
