//! Made-up headers for what puts values into requests and takes them out of answers. No server contains
//! this, and it must never weaken what it checks: a value is in its own header or nowhere.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use memchr::memmem;
use model::HostName;
use zeroize::Zeroizing;

use super::{BoundSecret, BoundaryNote, headers as hop_by_hop, placeholders, redaction};

const NAMES: [&str; 8] = [
    "authorization",
    "x-api-key",
    "cookie",
    "proxy-authorization",
    "connection",
    "location",
    "te",
    "transfer-encoding",
];
const OWN: [&str; 2] = ["sk-value-one-5f2c81", "sk-value-two/+=9d03"];
const OTHERS: &str = "sk-value-of-another-host";

fn host(name: &str) -> HostName {
    HostName::parse(name).expect("a name")
}

fn placeholder(number: usize) -> String {
    format!("shoal-placeholder-{number:032x}")
}

fn secrets() -> Vec<BoundSecret> {
    let secret = |number: usize, value: &str, header: &str, host_name: &str| BoundSecret {
        placeholder: placeholder(number),
        value: Zeroizing::new(value.to_owned()),
        header: header.to_owned(),
        hosts: vec![host(host_name)],
        secret: format!("secret-{number}"),
    };
    vec![
        secret(0, OWN[0], NAMES[0], "a.test"),
        secret(1, OWN[1], NAMES[1], "a.test"),
        secret(2, OTHERS, NAMES[0], "b.test"),
    ]
}

/// Bytes as the value of a header. A few stand for what made-up bytes would never contain.
fn value(bytes: &[u8]) -> Option<HeaderValue> {
    let mut text = Vec::new();
    let mut basic = None;
    for byte in bytes {
        match byte {
            1..=3 => text.extend(placeholder(usize::from(*byte) - 1).into_bytes()),
            4 | 5 => text.extend_from_slice(OWN[usize::from(*byte) - 4].as_bytes()),
            6 => text.extend(STANDARD.encode(OWN[0]).into_bytes()),
            7 => basic = Some(text.len()),
            other => text.push(*other),
        }
    }
    if let Some(at) = basic {
        let encoded = STANDARD.encode(&text[at..]);
        text.truncate(at);
        text.extend_from_slice(b"Basic ");
        text.extend(encoded.into_bytes());
    }
    HeaderValue::from_bytes(&text).ok()
}

fn made_of(lines: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some((which, rest)) = line.split_first() else { continue };
        let name = NAMES[usize::from(*which) % NAMES.len()];
        if let (Some(value), true) = (value(rest), headers.len() < 64) {
            headers.append(HeaderName::from_static(name), value);
        }
    }
    headers
}

/// How often a value stands in headers that are not its own.
fn strays(headers: &HeaderMap, value: &str, own: &str) -> usize {
    let others = headers.iter().filter(|(name, _)| name.as_str() != own);
    others.map(|(_, found)| memmem::find_iter(found.as_bytes(), value.as_bytes()).count()).sum()
}

/// Sends made-up headers out, and takes them for an answer.
pub(crate) fn headers(lines: &[u8]) {
    let (host, secrets) = (host("a.test"), secrets());
    let quiet = |_: BoundaryNote| {};
    let asked = made_of(lines);
    let mut sent = asked.clone();
    if placeholders::replace(&mut sent, &host, &secrets).is_ok() {
        assert_eq!(sent.len(), asked.len(), "no header comes or goes");
        for secret in &secrets {
            let own = if secret.hosts.contains(&host) { secret.header.as_str() } else { "" };
            let (before, after) =
                (strays(&asked, &secret.value, own), strays(&sent, &secret.value, own));
            assert!(after <= before, "{} is in another header", secret.secret);
        }
        placeholders::note_others("/", &sent, &secrets, &quiet);
    }
    let mut answered = sent;
    redaction::redact(&mut answered, &host, &secrets, &quiet);
    for value in OWN {
        let encoded = STANDARD.encode(value);
        for (name, found) in &answered {
            for hidden in [value, encoded.trim_end_matches('=')] {
                let shown = memmem::find(found.as_bytes(), hidden.as_bytes()).is_some();
                assert!(!shown, "{name} of an answer shows a value");
            }
        }
    }
    let mut stripped = answered;
    hop_by_hop::strip(&mut stripped);
    assert!(!stripped.contains_key("connection") && !stripped.contains_key("te"));
}
