//! The table of `nf_tables`, as one batch that takes effect whole or not at all. Pure.
//!
//! Nothing here says that a destination is harmless: what the chain `out` accepts reaches our
//! listener, and what comes from there is judged again outside. Rules name ranges one by one and
//! never a set of intervals, which costs the kernel 100 KiB in each namespace.

use std::net::Ipv4Addr;

use super::expressions::{ICMP, Refusal, Rule, TCP, UDP};
use super::message::{APPEND, CREATE, DUMP, EXCLUSIVE, Messages, REQUEST};
use super::{
    ALL_PORTS, AddressRule, LISTENER, NAMES, OWN_ADDRESS, PROXY, REFUSED_AT_MOST, Rules, SYNTHETIC,
};

const TABLE: &str = "shoal";
/// What programs send.
const OUT: &str = "out";
/// What arrives, which is the same: every packet comes back over loopback.
const INTO: &str = "into";
/// The set of refused addresses.
const TRIED: &str = "tried";
const TRIED_ID: u32 = 1;

/// How long a refused address is kept.
const TRIED_MS: u64 = 10 * 60 * 1000;

/// Types of messages about tables, with the number of their subsystem.
mod kind {
    pub(super) const BEGIN: u16 = 0x10;
    pub(super) const END: u16 = 0x11;
    pub(super) const NEW_TABLE: u16 = 0xa00;
    /// One table by its name, or all of them.
    pub(super) const GET_TABLE: u16 = 0xa01;
    pub(super) const DELETE_TABLE: u16 = 0xa02;
    pub(super) const NEW_CHAIN: u16 = 0xa03;
    pub(super) const NEW_RULE: u16 = 0xa06;
    pub(super) const DELETE_RULES: u16 = 0xa08;
    pub(super) const NEW_SET: u16 = 0xa09;
    pub(super) const GET_ELEMENTS: u16 = 0xa0d;
}

/// Carries refused addresses.
pub(super) const ELEMENTS: u16 = 0xa0c;

/// Describes a table.
pub(super) const TABLE_FOUND: u16 = kind::NEW_TABLE;

/// The header of a message about tables of every family.
const EVERY_FAMILY: [u8; 4] = [0; 4];
/// The header of messages about tables: for IPv4 alone. Sandboxes have no other way out.
const HEADER: [u8; 4] = [2, 0, 0, 0];
/// The header of the first and the last message of a batch.
const BATCH: [u8; 4] = [0, 0, 0, 10];

/// Asks whether there is a table.
pub(super) fn asked() -> Vec<u8> {
    let mut all = Messages::default();
    all.add(kind::GET_TABLE, REQUEST, &HEADER, |table| table.text(1, TABLE));
    all.into_bytes()
}

/// A table with these rules where there is none, and an error where there is one. Unlike
/// [`replaced`], it removes nothing that the kernel would have to wait for.
pub(super) fn first(rules: &Rules) -> Vec<u8> {
    batch(|all| {
        new_table(all, CREATE | EXCLUSIVE);
        contents(all, rules);
    })
}

/// A table with these rules, in the place of the one that may be there.
pub(super) fn replaced(rules: &Rules) -> Vec<u8> {
    batch(|all| {
        new_table(all, 0);
        delete_table(all);
        new_table(all, 0);
        contents(all, rules);
    })
}

fn contents(all: &mut Messages, rules: &Rules) {
    chain(all, OUT, hook::OUTPUT);
    chain(all, INTO, hook::ARRIVAL);
    set(all);
    out_rules(all, rules);
    in_rules(all);
}

/// Other rules in the table that is there. What was refused stays known.
pub(super) fn changed(rules: &Rules) -> Vec<u8> {
    batch(|all| {
        all.add(kind::DELETE_RULES, REQUEST, &HEADER, |rules| {
            rules.text(1, TABLE);
            rules.text(2, OUT);
        });
        out_rules(all, rules);
    })
}

/// No table. It may be missing already.
pub(super) fn removed() -> Vec<u8> {
    batch(|all| {
        new_table(all, 0);
        delete_table(all);
    })
}

/// Asks for the refused addresses.
pub(super) fn refused_asked() -> Vec<u8> {
    let mut all = Messages::default();
    all.add(kind::GET_ELEMENTS, REQUEST | DUMP, &HEADER, |elements| {
        elements.text(2, TRIED);
        elements.text(1, TABLE);
    });
    all.into_bytes()
}

/// Asks which tables there are.
pub(super) fn all_asked() -> Vec<u8> {
    let mut all = Messages::default();
    all.add(kind::GET_TABLE, REQUEST | DUMP, &EVERY_FAMILY, |_| {});
    all.into_bytes()
}

fn batch(messages: impl FnOnce(&mut Messages)) -> Vec<u8> {
    let mut all = Messages::default();
    all.add(kind::BEGIN, REQUEST, &BATCH, |_| {});
    messages(&mut all);
    all.add(kind::END, REQUEST, &BATCH, |_| {});
    all.into_bytes()
}

fn new_table(all: &mut Messages, flags: u16) {
    all.add(kind::NEW_TABLE, REQUEST | flags, &HEADER, |table| {
        table.text(1, TABLE);
        table.number(2, 0);
    });
}

fn delete_table(all: &mut Messages) {
    all.add(kind::DELETE_TABLE, REQUEST, &HEADER, |table| table.text(1, TABLE));
}

/// Where chains hook in, and with which priority.
mod hook {
    pub(super) const OUTPUT: (u32, i32) = (3, 0);
    /// Before the kernel decides for whom a packet is.
    pub(super) const ARRIVAL: (u32, i32) = (0, -150);
}

fn chain(all: &mut Messages, name: &str, (hook, priority): (u32, i32)) {
    const ACCEPT: u32 = 1;
    all.add(kind::NEW_CHAIN, REQUEST | CREATE, &HEADER, |chain| {
        chain.text(1, TABLE);
        chain.text(3, name);
        chain.text(7, "filter");
        chain.number(5, ACCEPT);
        chain.nested(4, |place| {
            place.number(1, hook);
            place.number(2, priority.cast_unsigned());
        });
    });
}

/// The set of refused addresses, filled by the kernel.
fn set(all: &mut Messages) {
    /// Elements have an end and come from rules.
    const FLAGS: u32 = 0x30;
    /// An address and a port, for those who list the table.
    const ADDRESS_AND_PORT: u32 = 0x1cd;
    /// How to show them: in the order of the network.
    const SHOWN: [u8; 16] = [0, 4, 0, 0, 0, 0, 3, 8, 0, 4, 0x0d, 0, 0, 0, 1, 0];
    all.add(kind::NEW_SET, REQUEST | CREATE, &HEADER, |set| {
        set.text(1, TABLE);
        set.text(2, TRIED);
        set.number(3, FLAGS);
        set.number(4, ADDRESS_AND_PORT);
        set.number(5, 8);
        set.number(10, TRIED_ID);
        set.nested(9, |size| size.number(1, REFUSED_AT_MOST));
        set.bytes(11, &TRIED_MS.to_be_bytes());
        set.bytes(13, &SHOWN);
    });
}

fn rule(all: &mut Messages, chain: &str, expressions: impl FnOnce(&mut Rule<'_>)) {
    all.add(kind::NEW_RULE, REQUEST | CREATE | APPEND, &HEADER, |rule| {
        rule.text(1, TABLE);
        rule.text(2, chain);
        rule.nested(4, |list| expressions(&mut Rule(list)));
    });
}

fn out_rules(all: &mut Messages, rules: &Rules) {
    rule(all, OUT, |it| it.to(Ipv4Addr::LOCALHOST, 8).accept());
    rule(all, OUT, |it| it.to(OWN_ADDRESS, 32).accept());
    allowed(all, SYNTHETIC);
    match rules {
        Rules::Open => rule(all, OUT, |it| {
            // Neither "this host" nor groups of hosts.
            let (first, last) = (Ipv4Addr::new(1, 0, 0, 0), Ipv4Addr::new(223, 255, 255, 255));
            it.between(first, last).protocol(TCP).accept();
        }),
        Rules::Addresses(addresses) => {
            for addresses in addresses {
                allowed(all, *addresses);
            }
        }
    }
    // Two rules: when the set is full, the first one ends there.
    rule(all, OUT, |it| it.protocol(TCP).begins().record(TRIED, TRIED_ID));
    rule(all, OUT, |it| it.protocol(TCP).begins().refuse(Refusal::Prohibited));
    rule(all, OUT, |it| it.protocol(UDP).refuse(Refusal::PortUnreachable));
    // Every address is local here, so the kernel would answer.
    rule(all, OUT, |it| it.protocol(ICMP).asks_for_echo().drop());
}

fn allowed(all: &mut Messages, AddressRule { first, bits, ports }: AddressRule) {
    rule(all, OUT, |it| {
        it.to(first, bits).protocol(TCP);
        if ports != ALL_PORTS {
            it.ports(ports.0, ports.1);
        }
        it.accept();
    });
}

/// They are the same for every policy.
fn in_rules(all: &mut Messages) {
    for (address, port) in [NAMES, PROXY] {
        let ours = |it: &mut Rule<'_>| {
            it.to(address, 32).protocol(TCP).ports(port, port).begins();
        };
        rule(all, INTO, |it| {
            ours(it);
            it.hand_to(LISTENER);
        });
        // While our listener is away, a program of the sandbox must not be taken for it.
        rule(all, INTO, |it| {
            ours(it);
            it.refuse(Refusal::Reset);
        });
    }
    rule(all, INTO, |it| it.to(Ipv4Addr::LOCALHOST, 8).accept());
    rule(all, INTO, |it| it.to(OWN_ADDRESS, 32).accept());
    rule(all, INTO, |it| it.protocol(TCP).begins().hand_to(LISTENER));
    rule(all, INTO, |it| it.protocol(TCP).begins().refuse(Refusal::Reset));
}
