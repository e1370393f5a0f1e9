//! Certificates as Java reads them. Java knows neither the bundle of the system nor any variable, only
//! a store of its own, in its old format (JKS): every version reads it.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sha1::{Digest as _, Sha1};

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
/// An entry that is a certificate without a key.
const TRUSTED: u32 = 2;
/// The password that all stores of certificates have; it protects nothing.
const PASSWORD: &str = "changeit";
/// Part of the format.
const WHITENER: &[u8] = b"Mighty Aphrodite";

/// A store with the certificates of a bundle. What is no certificate is left out.
pub fn java_store(bundle_pem: &[u8]) -> Vec<u8> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(bundle_pem).filter_map(Result::ok).collect();
    let mut store = Vec::with_capacity(bundle_pem.len());
    for word in [MAGIC, VERSION, found.len() as u32] {
        store.extend(word.to_be_bytes());
    }
    for (number, certificate) in found.iter().enumerate() {
        store.extend(TRUSTED.to_be_bytes());
        put_text(&mut store, &number.to_string());
        // When it was put there, which no program asks for.
        store.extend(0_u64.to_be_bytes());
        put_text(&mut store, "X.509");
        store.extend((certificate.len() as u32).to_be_bytes());
        store.extend_from_slice(certificate);
    }
    let mut digest = Sha1::new();
    for unit in PASSWORD.encode_utf16() {
        digest.update(unit.to_be_bytes());
    }
    digest.update(WHITENER);
    digest.update(&store);
    store.extend(digest.finalize());
    store
}

fn put_text(store: &mut Vec<u8>, text: &str) {
    store.extend((text.len() as u16).to_be_bytes());
    store.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;

    #[test]
    fn java_store_has_every_certificate_of_the_bundle() {
        let (one, other) = (Authority::new().unwrap(), Authority::new().unwrap());
        let bundle = format!(
            "# a comment\n{}not a certificate\n{}",
            one.certificate_pem(),
            other.certificate_pem()
        );
        let store = java_store(bundle.as_bytes());
        assert_eq!(store[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2]);
        for pem in [one.certificate_pem(), other.certificate_pem()] {
            let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            let has = |part: &[u8]| store.windows(part.len()).any(|window| window == part);
            assert!(has(&certificate));
        }
    }

    #[test]
    fn java_store_of_nothing_is_an_empty_store() {
        assert_eq!(java_store(b"").len(), 12 + 20);
    }
}
