//! Certificates: those of the boundary, and what is said of those of real hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use model::HostName;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::CertifiedKey;
use time::{Duration, OffsetDateTime};

use super::support::*;
use crate::boundary::roots::{check_authorities, problem_of};
use crate::boundary::{Authority, BoundaryNote, UpstreamRoots};

#[test]
fn an_authority_survives_its_message_and_shows_no_key() {
    let authority = Authority::new().unwrap();
    let carried = postcard::to_allocvec(&authority).unwrap();
    let read: Authority = postcard::from_bytes(&carried).unwrap();
    assert_eq!(read.certificate_pem(), authority.certificate_pem());
    assert!(read.leaf_for(&host()).is_ok());
    assert_eq!(format!("{authority:?}"), "Authority { .. }");
    let json = serde_json::to_string(&authority).unwrap();
    let read: Authority = serde_json::from_str(&json).unwrap();
    CertificateDer::from_pem_slice(read.certificate_pem().as_bytes()).unwrap();
    assert!(serde_json::from_str::<Authority>(r#"{"certificate":[1],"key":[1]}"#).is_err());
}

#[test]
fn authorities_of_an_operator_are_read_beside_those_of_the_system() {
    let pem = Authority::new().unwrap().certificate_pem();
    assert!(UpstreamRoots::load(None).is_ok());
    assert!(UpstreamRoots::load(Some(&format!("{pem}{pem}"))).is_ok());
    let broken = pem.replace("MII", "AAA");
    assert!(UpstreamRoots::load(Some(&broken)).is_err());
    assert!(UpstreamRoots::load(Some("")).is_err(), "a file without one is a mistake");
    for (text, problem) in [
        ("", "it has no certificate"),
        ("a text", "it has no certificate"),
        (&broken, "a certificate in it cannot be used"),
        ("-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n", "it is not PEM"),
    ] {
        let said = check_authorities(text).unwrap_err();
        assert!(said.starts_with(problem), "{said}");
    }
}

#[test]
fn a_leaf_is_kept_until_it_is_about_to_end() {
    let authority = Authority::new().unwrap();
    let now = OffsetDateTime::now_utc();
    let first = authority.leaf_at(&host(), now).unwrap();
    let later = authority.leaf_at(&host(), now + Duration::days(5)).unwrap();
    assert_eq!(first.cert, later.cert);
    let renewed = authority.leaf_at(&host(), now + Duration::days(6)).unwrap();
    assert_ne!(first.cert, renewed.cert);
}

#[test]
fn the_leaf_that_was_used_longest_ago_makes_room() {
    let authority = Authority::new().unwrap();
    let now = OffsetDateTime::now_utc();
    let leaf = |name: &str| {
        authority.leaf_at(&HostName::parse(name).unwrap(), now).unwrap().cert[0].clone()
    };
    let (kept, gone) = (leaf("kept.test"), leaf("gone.test"));
    for number in 0..255 {
        leaf(&format!("n{number}.test"));
        assert_eq!(leaf("kept.test"), kept);
    }
    assert_ne!(leaf("gone.test"), gone);
}

#[tokio::test]
async fn a_client_that_asks_for_another_name_gets_no_certificate() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    assert!(between.client("other.shoal.test", &["http/1.1"]).await.is_err());
    assert!(between.client("127.0.0.1", &["http/1.1"]).await.is_err());
    assert!(between.client(HOST, &["http/1.1"]).await.is_ok());
}

#[test]
fn rare_problems_of_certificates_are_said_in_words() {
    use rustls::{CertificateError, OtherError};
    let said = |problem: CertificateError| {
        problem_of(&std::io::Error::other(rustls::Error::InvalidCertificate(problem)))
    };
    let other = |name: &str| {
        said(CertificateError::Other(OtherError(Arc::new(std::io::Error::other(name.to_owned())))))
    };
    for (said, words) in [
        (said(CertificateError::InvalidPurpose), "it is not for servers"),
        (said(CertificateError::UnknownRevocationStatus), "unknown revocation status"),
        (other("EndEntityUsedAsCa"), "a certificate that signed it is not that of an authority"),
        (other("TrailingData(Certificate)"), "trailing data"),
    ] {
        assert_eq!(said, format!("its certificate was not accepted: {words}"));
    }
}

/// A client that would show a certificate.
#[derive(Debug, Default)]
struct Shows(AtomicBool);

impl ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, SeqCst);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A certificate of the client would end here and not at the real host.
#[tokio::test]
async fn a_client_is_not_asked_for_a_certificate() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let shows = Arc::new(Shows::default());
    let resolver = Arc::clone(&shows);
    let change = |config: &mut rustls::ClientConfig| config.client_auth_cert_resolver = resolver;
    assert!(between.client_with(HOST, &["http/1.1"], change).await.is_ok());
    assert!(!shows.0.load(SeqCst));
}

#[tokio::test]
async fn a_real_host_with_a_bad_certificate_is_refused_with_the_reason() {
    let mut other = certified(HOST, false, &["http/1.1"]);
    other.pem = String::new();
    for (certified, reason) in [
        (other, "no authority that this node trusts signed it"),
        (certified("other.shoal.test", false, &["http/1.1"]), "it is for another name"),
        (certified(HOST, true, &["http/1.1"]), "it has expired"),
        (self_signed(&["http/1.1"]), "no authority that this node trusts signed it"),
        (
            authority_as_server(&["http/1.1"]),
            "it is the certificate of an authority, not of a server",
        ),
    ] {
        let real = real_tls(certified, |_| async {}).await;
        let between = Between::usual(&real);
        let mut client = between.http1().await;
        let request = get("/").header("authorization", PLACEHOLDER).body(full("")).unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), 502);
        let said = text(response).await;
        assert!(said.contains(HOST) && said.contains(reason), "{said}");
        assert!(!said.contains(VALUE));
        // Nothing went out, and the log must not say so.
        let reason = format!("its certificate was not accepted: {reason}");
        assert_eq!(between.notes(), [BoundaryNote::UpstreamFailed { reason }]);
        assert_eq!(between.verified.load(SeqCst), 0);
    }
}

/// Who dialled has reported that already, and knows more.
#[tokio::test]
async fn a_real_host_that_does_not_answer_is_not_noted_twice() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = Real { address, pem: String::new(), connections: Arc::default() };
    let between = Between::usual(&gone);
    let mut client = between.http1().await;
    let request = get("/").header("authorization", PLACEHOLDER).body(full("")).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.status(), 502);
    let said = text(response).await;
    assert!(said.contains(&format!("{HOST} was not reached: Connection refused")), "{said}");
    assert_eq!(between.notes(), []);
}
