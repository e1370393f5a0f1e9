//! Rules of channels and lanes: what closes them, what breaks them, what is dropped silently.

use guest_protocol::endpoint::{INITIAL_WINDOW_BYTES, MAX_CHANNELS};
use guest_protocol::frame::{Header, Kind, MAX_MESSAGE_BYTES};
use guest_protocol::message::{Request, lane};
use guest_protocol::{Endpoint, Env, Incoming, ProtocolError};

const WINDOW: usize = INITIAL_WINDOW_BYTES as usize;

/// A host and a guest with channel 1 open between them.
fn pair() -> (Endpoint, Endpoint) {
    let (mut host, mut guest) = (Endpoint::new(), Endpoint::accepting());
    host.send(1, &Request::Ping).unwrap();
    carry(&mut host, &mut guest).unwrap();
    assert!(matches!(guest.next(), Some(Incoming::Message { channel: 1, .. })));
    (host, guest)
}

fn carry(from: &mut Endpoint, to: &mut Endpoint) -> Result<(), ProtocolError> {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    to.feed(&bytes)
}

fn frame(kind: Kind, channel: u32, lane: u8, payload: &[u8]) -> Vec<u8> {
    let header = Header { channel, kind, lane, payload_bytes: payload.len() };
    [&header.to_bytes()[..], payload].concat()
}

#[test]
fn a_lane_accepts_one_window_of_data() {
    let (_, mut guest) = pair();
    assert_eq!(guest.send_data(1, lane::STDOUT, &vec![0; WINDOW + 5]), WINDOW);
    assert_eq!(guest.window(1, lane::STDOUT), 0);
    assert_eq!(guest.send_data(1, lane::STDOUT, b"x"), 0);
    assert_eq!(guest.window(1, lane::STDERR), WINDOW, "other lanes are not touched");
    assert_eq!(guest.window(2, lane::MAIN), 0, "it was never opened");
    assert_eq!(guest.window(1, 3), 0, "no such lane");
    assert_eq!(guest.send_data(1, 3, b"x"), 0);
}

#[test]
fn more_data_than_the_window_breaks_the_connection() {
    let (mut host, mut guest) = pair();
    guest.send_data(1, lane::STDOUT, &vec![0; WINDOW]);
    carry(&mut guest, &mut host).unwrap();
    let broken = ProtocolError::WindowExceeded { channel: 1, lane: 1, excess_bytes: 2 };
    assert_eq!(host.feed(&frame(Kind::Data, 1, 1, b"no")), Err(broken));
    assert_eq!(host.feed(&[]), Err(broken), "an error stays");
    let mut arrived = 0;
    while let Some(incoming) = host.next() {
        let Incoming::Data { bytes, .. } = incoming else { panic!("{incoming:?}") };
        arrived += bytes.len();
    }
    assert_eq!(arrived, WINDOW, "what was allowed is still there");
}

#[test]
fn credit_for_nothing_breaks_the_connection() {
    for (sent, credit_bytes) in [(0, 1_u32), (10, 11), (10, 0), (10, u32::MAX)] {
        let (_, mut guest) = pair();
        guest.send_data(1, 0, &vec![0; sent]);
        assert_eq!(
            guest.feed(&frame(Kind::Credit, 1, 0, &credit_bytes.to_le_bytes())),
            Err(ProtocolError::BadCredit { channel: 1, lane: 0, credit_bytes })
        );
    }
}

#[test]
fn nothing_follows_the_end_of_a_lane() {
    for kind in [Kind::Data, Kind::End] {
        let (mut host, _) = pair();
        host.feed(&frame(Kind::End, 1, 1, b"")).unwrap();
        let payload: &[u8] = if kind == Kind::Data { b"x" } else { b"" };
        assert_eq!(
            host.feed(&frame(kind, 1, 1, payload)),
            Err(ProtocolError::AfterEnd { channel: 1, lane: 1 })
        );
    }
    let (mut host, mut guest) = pair();
    guest.end(1, lane::STDOUT);
    guest.end(1, lane::STDOUT);
    assert_eq!(guest.send_data(1, lane::STDOUT, b"x"), 0);
    assert_eq!(guest.outgoing().len(), 10, "the end is said once");
    carry(&mut guest, &mut host).unwrap();
    assert_eq!(host.send_data(1, lane::STDOUT, b"x"), 1, "the other direction is still open");
}

#[test]
fn a_reset_ends_both_directions_and_drops_what_is_under_way() {
    let (mut host, mut guest) = pair();
    guest.send_data(1, lane::STDOUT, b"one");
    carry(&mut guest, &mut host).unwrap();
    guest.send_data(1, lane::STDOUT, b"two");
    host.reset(1, lane::STDOUT);
    host.reset(1, lane::STDOUT);
    assert_eq!(host.outgoing().len(), 10, "it is said once");
    assert_eq!(host.next(), None, "what had arrived is not wanted any more");
    carry(&mut guest, &mut host).unwrap();
    carry(&mut host, &mut guest).unwrap();
    assert_eq!(host.next(), None);
    assert_eq!(guest.next(), Some(Incoming::Reset { channel: 1, lane: lane::STDOUT }));
    assert_eq!(guest.send_data(1, lane::STDOUT, b"three"), 0);
    guest.end(1, lane::STDOUT);
    guest.reset(1, lane::STDOUT);
    assert!(guest.outgoing().is_empty(), "the other side has abandoned it");
    assert_eq!(guest.send_data(1, lane::STDERR, b"x"), 1, "other lanes live on");
}

#[test]
fn credit_comes_back_in_halves_of_a_window() {
    let (mut host, mut guest) = pair();
    guest.send_data(1, 1, &vec![0; WINDOW]);
    carry(&mut guest, &mut host).unwrap();
    host.consumed(1, 1, WINDOW / 2 - 1);
    assert!(host.outgoing().is_empty());
    host.consumed(1, 1, 1);
    carry(&mut host, &mut guest).unwrap();
    assert_eq!(guest.next(), Some(Incoming::Writable { channel: 1, lane: 1 }));
    assert_eq!(guest.window(1, 1), WINDOW / 2);
    host.consumed(1, 1, usize::MAX);
    carry(&mut host, &mut guest).unwrap();
    assert_eq!(guest.window(1, 1), WINDOW, "never more credit than data");
    assert_eq!(guest.next(), None, "it was writable all along");
}

#[test]
fn late_frames_for_a_closed_channel_are_dropped() {
    let (mut host, mut guest) = pair();
    guest.send_data(1, 1, b"x");
    guest.send(1, &guest_protocol::message::Reply::Done).unwrap();
    carry(&mut guest, &mut host).unwrap();
    host.close(1);
    assert_eq!(host.next(), None);
    guest.end(1, 1);
    guest.send(1, &guest_protocol::message::Reply::Done).unwrap();
    carry(&mut guest, &mut host).unwrap();
    assert_eq!(host.next(), None);
    host.send_data(1, 1, b"x");
    host.end(1, 1);
    host.reset(1, 1);
    host.consumed(1, 1, 1);
    assert!(host.outgoing().is_empty());
    guest.close(1);
    guest.feed(&frame(Kind::Message, 1, 0, &[0])).unwrap();
    assert_eq!(guest.next(), None, "a number is not used twice");
}

#[test]
fn frames_on_unopened_channels_break_the_connection() {
    let unknown = |channel| Err(ProtocolError::UnknownChannel { channel });
    for kind in [Kind::Data, Kind::Credit, Kind::End, Kind::Reset] {
        let payload: &[u8] = match kind {
            Kind::Data | Kind::Credit => b"abcd",
            Kind::End | Kind::Reset | Kind::Message => b"",
        };
        for channel in [0, 2] {
            let (mut host, mut guest) = pair();
            assert_eq!(host.feed(&frame(kind, channel, 0, payload)), unknown(channel));
            assert_eq!(guest.feed(&frame(kind, channel, 0, payload)), unknown(channel));
        }
        let (mut host, _) = pair();
        let no_lane = Err(ProtocolError::UnknownLane { channel: 1, lane: 3 });
        assert_eq!(host.feed(&frame(kind, 1, 3, payload)), no_lane);
    }
    let (mut host, mut guest) = pair();
    assert_eq!(host.feed(&frame(Kind::Message, 2, 0, &[2])), unknown(2), "a guest opens none");
    assert_eq!(guest.feed(&frame(Kind::Message, 0, 0, &[0])), unknown(0), "0 is the guest's");
}

#[test]
fn open_channels_have_a_limit() {
    let mut guest = Endpoint::accepting();
    let open = |channel| frame(Kind::Message, channel, 0, &[0]);
    for channel in 1..=MAX_CHANNELS as u32 {
        guest.feed(&open(channel)).unwrap();
    }
    guest.close(17);
    guest.feed(&open(5000)).unwrap();
    let refused = Err(ProtocolError::TooManyChannels { limit: MAX_CHANNELS });
    assert_eq!(guest.feed(&open(5001)), refused);
}

#[test]
fn a_message_that_is_too_long_is_not_queued() {
    let mut host = Endpoint::new();
    host.send(1, &Request::Ping).unwrap();
    let before = host.outgoing().to_vec();
    let env: Env = [("A", "x".repeat(MAX_MESSAGE_BYTES))].into_iter().collect();
    let error = host.send(2, &Request::Claim { env }).unwrap_err();
    assert!(matches!(error, ProtocolError::MessageTooLong { .. }));
    assert_eq!(host.outgoing(), before);
    assert_eq!(host.open_channels(), 1);
}

#[test]
fn sent_bytes_leave_in_order_whatever_the_writes() {
    let (_, mut guest) = pair();
    let bytes: Vec<u8> = (0..WINDOW).map(|n| (n % 251) as u8).collect();
    guest.send_data(1, 1, &bytes);
    let all = guest.outgoing().to_vec();
    let mut written = Vec::new();
    for step in [1, 70_000, 5, 100_000, 3].into_iter().cycle() {
        let step = step.min(guest.outgoing().len());
        if step == 0 {
            break;
        }
        written.extend_from_slice(&guest.outgoing()[..step]);
        guest.sent(step);
    }
    assert_eq!(written, all);
}
