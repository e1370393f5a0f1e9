//! The authority that signs the certificates which sandboxes see in place of those of named hosts. Its
//! key leaves this process only in the control message that moves it, and never appears in text.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::HostName;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::{Duration, OffsetDateTime};
use zeroize::{Zeroize as _, Zeroizing};

const NAME: &str = "Shoal boundary";
/// How many leaf certificates are kept.
const LEAVES_MAX: usize = 256;
const AUTHORITY_LIFE: Duration = Duration::days(3650);
const LEAF_LIFE: Duration = Duration::days(7);
/// Clocks of sandboxes and certificates that were just made: one may be behind the other.
const BACKDATED: Duration = Duration::hours(1);
/// A leaf that ends sooner than this is made anew.
const LEAF_LEFT_MIN: Duration = Duration::days(1);

/// A certificate authority for sandboxes of one key.
pub struct Authority {
    certificate: CertificateDer<'static>,
    key: Zeroizing<Vec<u8>>,
    leaves: Mutex<Leaves>,
}

/// The certificates made so far, each with when it was last used.
#[derive(Default)]
struct Leaves {
    by_name: BTreeMap<HostName, Leaf>,
    uses: u64,
}

struct Leaf {
    certified: Arc<CertifiedKey>,
    ends: OffsetDateTime,
    used: u64,
}

/// Why an authority or a certificate was not made.
#[derive(Debug, thiserror::Error)]
#[error("the certificate of the boundary was not made: {0}")]
pub struct AuthorityError(String);

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<rustls::Error> for AuthorityError {
    fn from(error: rustls::Error) -> Self {
        Self(error.to_string())
    }
}

/// An authority as a control message carries it.
#[derive(Serialize, Deserialize)]
struct Carried {
    certificate: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

impl Authority {
    /// Makes a new one, with a key of its own.
    pub fn new() -> Result<Self, AuthorityError> {
        let mut key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let now = now();
        let mut params = named();
        params.not_before = now - BACKDATED;
        params.not_after = now + AUTHORITY_LIFE;
        params.serial_number = Some(random_serial()?);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.der().clone();
        let der = Zeroizing::new(key.serialized_der().to_vec());
        key.zeroize();
        Ok(Self { certificate, key: der, leaves: Mutex::default() })
    }

    /// Its certificate, which programs in sandboxes must trust.
    pub fn certificate_pem(&self) -> String {
        let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
        let encoded = STANDARD.encode(&self.certificate);
        for (at, letter) in encoded.chars().enumerate() {
            if at > 0 && at.is_multiple_of(64) {
                text.push('\n');
            }
            text.push(letter);
        }
        text.push_str("\n-----END CERTIFICATE-----\n");
        text
    }

    /// The certificate for a name, made now or before.
    pub(crate) fn leaf_for(&self, name: &HostName) -> Result<Arc<CertifiedKey>, AuthorityError> {
        self.leaf_at(name, now())
    }

    pub(super) fn leaf_at(
        &self,
        name: &HostName,
        now: OffsetDateTime,
    ) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        leaves.uses += 1;
        let used = leaves.uses;
        if let Some(leaf) = leaves.by_name.get_mut(name)
            && leaf.ends - now > LEAF_LEFT_MIN
        {
            leaf.used = used;
            return Ok(Arc::clone(&leaf.certified));
        }
        let ends = now + LEAF_LIFE;
        let certified = Arc::new(self.issue(name, now - BACKDATED, ends)?);
        leaves.make_room(name);
        leaves.by_name.insert(name.clone(), Leaf { certified: Arc::clone(&certified), ends, used });
        Ok(certified)
    }

    fn issue(
        &self,
        name: &HostName,
        begins: OffsetDateTime,
        ends: OffsetDateTime,
    ) -> Result<CertifiedKey, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::DnsName(name.as_str().try_into()?)];
        params.not_before = begins;
        params.not_after = ends;
        params.serial_number = Some(random_serial()?);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;

        let pkcs8 = PrivatePkcs8KeyDer::from(self.key.as_slice());
        let mut signer = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ECDSA_P256_SHA256)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let issued = params.signed_by(&key, &Issuer::new(named(), &signer));
        signer.zeroize();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        Ok(CertifiedKey::from_der(vec![issued?.into()], key, &provider)?)
    }
}

impl Leaves {
    /// Makes room for one more name, by forgetting the one that was used longest ago.
    fn make_room(&mut self, name: &HostName) {
        if self.by_name.len() < LEAVES_MAX || self.by_name.contains_key(name) {
            return;
        }
        let oldest = self.by_name.iter().min_by_key(|(_, leaf)| leaf.used);
        if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
            self.by_name.remove(&oldest);
        }
    }
}

/// The parameters that a certificate of the authority and the issuer of leaves have in common.
fn named() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params
}

fn random_serial() -> Result<SerialNumber, AuthorityError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| AuthorityError(error.to_string()))?;
    // Positive, and of a length that does not vary.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid by the clock of the wall")]
fn now() -> OffsetDateTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let since = i64::try_from(since).unwrap_or_default();
    OffsetDateTime::from_unix_timestamp(since).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Serialize for Authority {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let certificate = self.certificate.to_vec();
        Carried { certificate, key: self.key.clone() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Authority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Carried { certificate, key } = Carried::deserialize(deserializer)?;
        let pkcs8 = PrivatePkcs8KeyDer::from(key.as_slice());
        let read = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ECDSA_P256_SHA256);
        let mut read = read.map_err(|_| D::Error::custom("the key of an authority is not one"))?;
        read.zeroize();
        Ok(Self { certificate: certificate.into(), key, leaves: Mutex::default() })
    }
}
