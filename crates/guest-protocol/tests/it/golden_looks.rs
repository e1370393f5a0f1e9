//! The bytes of every look and its records. A change here is a change of the protocol: raise its
//! version.

use guest_protocol::look::{Change, Look, Sighting, Until, Which};
use guest_protocol::message::{EntryKind, Fault, FaultCode, Pipe, Request};

use crate::golden_messages::pin;

fn which() -> Which {
    Which {
        names: vec!["*".into()],
        exclude_directories: vec!["d".into(), "e".into()],
        exclude_hidden: true,
    }
}

fn look(look: Look, output: Pipe) -> Request {
    Request::Look { look: Box::new(look), output }
}

#[test]
fn looks() {
    let until = Until { results: 300, time_ms: 5 };
    let find = Look::Find {
        path: "/w".into(),
        which: which(),
        kinds: vec![EntryKind::Directory],
        max_depth: Some(2),
        until,
    };
    pin(&look(find, Pipe::Passed), "1300022f7701012a02016401650101010102ac020501");
    let search = Look::Search {
        path: "/w".into(),
        text: "x".into(),
        case_sensitive: true,
        which: Which::default(),
        until,
    };
    pin(&look(search, Pipe::Lane), "1301022f77017801000000ac020502");
    pin(&look(Look::Watch { path: "/w".into(), recursive: true }, Pipe::Lane), "1302022f770102");
    pin(&look(Look::Sockets { pid: 300 }, Pipe::Passed), "1303ac0201");
}

#[test]
fn sightings() {
    pin(&Sighting::Armed, "00");
    let file = Sighting::File {
        path: b"a".to_vec(),
        kind: EntryKind::Link,
        size: 128,
        mode: 0o777,
        modified_ms: -1,
    };
    pin(&file, "010161028001ff0301");
    let line = Sighting::Match { path: b"a".to_vec(), line: 1, column: 2, text: b"xy".to_vec() };
    pin(&line, "0201610102027879");
    let socket = Sighting::Socket {
        pid: 2,
        program: "p".into(),
        protocol: "tcp".into(),
        local_address: "l".into(),
        local_port: 80,
        remote_address: "r".into(),
        remote_port: 0,
        state: "S".into(),
    };
    pin(&socket, "0302017003746370016c500172000153");
    let kinds = [
        (Change::Created, "00"),
        (Change::Written, "01"),
        (Change::Removed, "02"),
        (Change::Renamed, "03"),
        (Change::About, "04"),
        (Change::Lost, "05"),
    ];
    for (kind, hex) in kinds {
        let change = Sighting::Change { kind, path: b"/a".to_vec(), is_directory: true };
        pin(&change, &format!("04{hex}022f6101"));
    }
    pin(&Sighting::Over { truncated: true, count: 7 }, "050107");
    let fault = Fault { code: FaultCode::Limit, errno: 28, message: "m".into() };
    pin(&Sighting::Failed(fault), "060538016d");
}

/// Does not compile when a variant is added: pin its bytes above, then name it here.
#[test]
fn no_variant_is_missing_above() {
    let _ = |look: Look| match look {
        Look::Find { .. } | Look::Search { .. } | Look::Watch { .. } | Look::Sockets { .. } => {}
    };
    let _ = |sighting: Sighting| match sighting {
        Sighting::Armed
        | Sighting::File { .. }
        | Sighting::Match { .. }
        | Sighting::Socket { .. }
        | Sighting::Change { .. }
        | Sighting::Over { .. }
        | Sighting::Failed(_) => {}
    };
}
