//! The bytes between host and keeper. Both come from the same build, so there is no version; but a
//! change here should be deliberate.

use guest_protocol::keeper::{
    Ask, Fact, FromKeeper, KeeperRefusal, KeeperRefusalCode, ToKeeper, WritableMountSpec,
};
use guest_protocol::network::{NetworkFeature, NetworkRequest, NetworkRules};

use crate::golden_messages::pin;

#[test]
fn requests() {
    let place = WritableMountSpec {
        path: "/tmp".into(),
        bytes: 300,
        mode: 0o1777,
        uid: 1000,
        no_programs: true,
    };
    pin(&ToKeeper { ticket: 1, ask: Ask::Look, places: vec![] }, "010000");
    pin(
        &ToKeeper { ticket: 300, ask: Ask::Renew, places: vec![place] },
        "ac020101042f746d70ac02ff07e80701",
    );
    pin(&ToKeeper { ticket: 2, ask: Ask::Prove, places: vec![] }, "020200");
    let ask = Ask::Network(NetworkRequest::Arm(NetworkRules::Open));
    pin(&ToKeeper { ticket: 3, ask, places: vec![] }, "0303000000");
}

#[test]
fn answers() {
    pin(&FromKeeper::Up { network: NetworkFeature::ProxyOnly }, "0001");
    let facts = vec![Fact { name: "a".into(), value: "b".into() }];
    pin(&FromKeeper::Seen { ticket: 1, facts }, "01010101610162");
    pin(&FromKeeper::Renewed { ticket: 300 }, "02ac02");
    let refused = vec![([10, 0, 0, 1], 300)];
    pin(&FromKeeper::Networked { ticket: 1, refused }, "0301010a000001ac02");
    for (code, byte) in [
        (KeeperRefusalCode::Gone, "00"),
        (KeeperRefusalCode::Foreign, "01"),
        (KeeperRefusalCode::Left, "02"),
        (KeeperRefusalCode::Powerless, "03"),
        (KeeperRefusalCode::System, "04"),
    ] {
        let refusal = KeeperRefusal { code, step: "x".into(), errno: 1 };
        pin(&FromKeeper::Refused { ticket: 7, refusal }, &format!("0407{byte}017802"));
    }
}
