//! What the kernel says about refused addresses. Pure.

use std::net::Ipv4Addr;

use super::message::{DONE, attribute, attributes, error_in, received};
use super::table::ELEMENTS;

/// Where the elements are in a message, behind the header of the subsystem.
const HEADER_BYTES: usize = 4;
const LIST: u16 = 3;
const ELEMENT: u16 = 1;
const KEY: u16 = 1;
const VALUE: u16 = 1;

/// What one answer says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// More answers follow.
    More,
    /// That was all.
    End,
    /// The kernel refused, with this error number.
    Failed(i32),
}

/// Adds the addresses of an answer to a list.
pub(super) fn read(answer: &[u8], into: &mut Vec<(Ipv4Addr, u16)>) -> Answer {
    for message in received(answer) {
        match error_in(&message) {
            Some(0) | None if message.kind == DONE => return Answer::End,
            Some(0) | None => {}
            Some(errno) => return Answer::Failed(errno),
        }
        if message.kind != ELEMENTS {
            continue;
        }
        let body = message.body.get(HEADER_BYTES..).unwrap_or_default();
        let elements = attribute(body, LIST).unwrap_or_default();
        into.extend(attributes(elements).filter_map(|(kind, element)| {
            let key = attribute(attribute(element, KEY)?, VALUE)?;
            (kind == ELEMENT).then(|| key_of(key)).flatten()
        }));
    }
    Answer::More
}

/// An address, and a port in the first half of its four bytes.
fn key_of(key: &[u8]) -> Option<(Ipv4Addr, u16)> {
    let address = Ipv4Addr::from(*key.first_chunk::<4>()?);
    let port = u16::from_be_bytes(*key.get(4..)?.first_chunk()?);
    Some((address, port))
}
