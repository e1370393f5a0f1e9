//! No bytes make a message that panics, and a message that was read is written with the same
//! meaning.
#![no_main]

use std::fmt::Debug;

use guest_protocol::Endpoint;
use guest_protocol::launcher::{FromLauncher, LauncherConfig, ToLauncher};
use guest_protocol::message::{Reply, Request};
use guest_protocol::{Incoming, decode};
use libfuzzer_sys::fuzz_target;

fn round(bytes: &[u8]) {
    if let Ok(request) = decode::<Request>(bytes) {
        let (mut host, mut guest) = (Endpoint::new(), Endpoint::accepting());
        host.send(1, &request).expect("what was that long is not longer");
        guest.feed(host.outgoing()).expect("an honest frame");
        match guest.next() {
            Some(Incoming::Message { payload, .. }) => same(decode(&payload), &request),
            other => panic!("{other:?}"),
        }
    }
}

fn same<M: PartialEq + Debug, E: Debug>(found: Result<M, E>, expected: &M) {
    assert_eq!(&found.expect("it was a message before"), expected);
}

fuzz_target!(|bytes: &[u8]| {
    round(bytes);
    let _ = decode::<Reply>(bytes);
    let _ = decode::<ToLauncher>(bytes);
    let _ = decode::<FromLauncher>(bytes);
    let _ = decode::<LauncherConfig>(bytes);
});
