//! However the bytes of a connection are split, and whenever a reader gives up waiting, the same
//! things arrive in the same order.

use guest_protocol::message::Request;
use guest_protocol::{Endpoint, Incoming};
use proptest::collection::vec;
use proptest::prelude::*;

/// Something a host does.
#[derive(Debug, Clone)]
enum Act {
    Ask(u8),
    Data(u8, u8, usize),
    End(u8, u8),
    Reset(u8, u8),
}

fn act() -> impl Strategy<Value = Act> {
    let channel = 1_u8..5;
    let lane = 0_u8..3;
    prop_oneof![
        channel.clone().prop_map(Act::Ask),
        (channel.clone(), lane.clone(), 1_usize..100_000).prop_map(|(c, l, n)| Act::Data(c, l, n)),
        (channel.clone(), lane.clone(), 1_usize..100).prop_map(|(c, l, n)| Act::Data(c, l, n)),
        (channel.clone(), lane.clone()).prop_map(|(c, l)| Act::End(c, l)),
        (channel, lane).prop_map(|(c, l)| Act::Reset(c, l)),
    ]
}

/// The bytes of a host that has done all that.
fn bytes_of(acts: &[Act]) -> Vec<u8> {
    let mut host = Endpoint::new();
    for channel in 1..5 {
        host.send(channel, &Request::Ping).unwrap();
    }
    for (n, act) in acts.iter().enumerate() {
        match *act {
            Act::Ask(channel) => {
                host.send(channel.into(), &Request::Dial { port: n as u16 }).unwrap();
            }
            Act::Data(channel, lane, size) => {
                let bytes: Vec<u8> = (0..size).map(|k| (k + n) as u8).collect();
                host.send_data(channel.into(), lane, &bytes);
            }
            Act::End(channel, lane) => host.end(channel.into(), lane),
            Act::Reset(channel, lane) => host.reset(channel.into(), lane),
        }
    }
    host.outgoing().to_vec()
}

fn arrived(guest: &mut Endpoint) -> Vec<Incoming> {
    std::iter::from_fn(|| guest.next()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_bytes_gives_the_same_frames(
        acts in vec(act(), 0..30),
        sizes in vec(prop_oneof![0_usize..12, 0_usize..70_000], 1..50),
        looks in vec(any::<bool>(), 1..20),
    ) {
        let bytes = bytes_of(&acts);
        let mut whole = Endpoint::accepting();
        whole.feed(&bytes).unwrap();
        let expected = arrived(&mut whole);

        let mut guest = Endpoint::accepting();
        let mut found = Vec::new();
        let (mut sizes, mut looks) = (sizes.into_iter().cycle(), looks.into_iter().cycle());
        let mut rest = &bytes[..];
        let mut idle = 0;
        while !rest.is_empty() {
            // A size of zero is a read that was given up: nothing was taken, nothing may be lost.
            let size = sizes.next().unwrap_or(1).min(rest.len());
            idle = if size == 0 { idle + 1 } else { 0 };
            let size = if idle > 50 { 1 } else { size };
            let (piece, more) = rest.split_at(size);
            guest.feed(piece).unwrap();
            rest = more;
            if looks.next().unwrap_or(true) {
                found.extend(arrived(&mut guest));
            }
        }
        found.extend(arrived(&mut guest));
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn frames_arrive_byte_by_byte() {
    let acts = [Act::Data(1, 0, 3000), Act::Ask(2), Act::End(1, 0), Act::Reset(3, 2)];
    let bytes = bytes_of(&acts);
    let (mut whole, mut guest) = (Endpoint::accepting(), Endpoint::accepting());
    whole.feed(&bytes).unwrap();
    let mut found = Vec::new();
    for byte in bytes {
        guest.feed(&[byte]).unwrap();
        found.extend(arrived(&mut guest));
    }
    assert_eq!(found, arrived(&mut whole));
    assert_eq!(found.len(), 4 + 4);
}
