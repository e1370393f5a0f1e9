//! Which authorities vouch for real hosts, and in plain words why a certificate was not accepted. It
//! must never accept a certificate that it could not verify.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{CertificateError, ClientConfig, OtherError, RootCertStore};

/// The configurations with which real hosts are spoken to.
#[derive(Clone)]
pub(crate) struct UpstreamRoots {
    /// For requests: the host chooses.
    pub(super) any: Arc<ClientConfig>,
    /// For upgrades, which only HTTP/1.1 has.
    pub(super) http1: Arc<ClientConfig>,
}

impl UpstreamRoots {
    /// Reads the authorities of this machine, and takes those of an operator in PEM besides. It opens
    /// files: a process that may not do so later calls it before.
    pub(crate) fn load(extra_pem: Option<&str>) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        // The first random bytes look for a device, which a filter of calls may later forbid.
        let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
        random.fill(&mut [0; 16]).map_err(|_| invalid("there are no random numbers"))?;
        // Some systems have one odd file among many good ones: what can be read counts.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Self::with(roots, extra_pem)
    }

    pub(super) fn with(mut roots: RootCertStore, extra_pem: Option<&str>) -> io::Result<Self> {
        if let Some(pem) = extra_pem {
            add(&mut roots, pem).map_err(|problem| invalid(&problem))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // A ticket would tie the connections of several sandboxes together.
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let http1 = Arc::new(config.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { any: Arc::new(config), http1 })
    }
}

/// Refuses a text that is no list of certificates of authorities in PEM, with the reason.
pub fn check_authorities(pem: &str) -> Result<(), String> {
    add(&mut RootCertStore::empty(), pem)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "problems of another crate, which adds more")]
fn add(roots: &mut RootCertStore, pem: &str) -> Result<(), String> {
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| format!("it is not PEM: {error}"))?;
        roots.add(certificate).map_err(|error| {
            let problem = match &error {
                rustls::Error::InvalidCertificate(problem) => certificate_problem(problem),
                error => error.to_string(),
            };
            format!("a certificate in it cannot be used: {problem}")
        })?;
    }
    if roots.len() == before { Err("it has no certificate".to_owned()) } else { Ok(()) }
}

fn invalid(problem: &str) -> io::Error {
    let text = format!("a certificate authority for the boundary cannot be used: {problem}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// What was wrong with a handshake, in plain words.
pub(super) fn problem_of(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(problem)) = inner else {
        return format!("the TLS handshake failed: {error}");
    };
    format!("its certificate was not accepted: {}", certificate_problem(problem))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "problems of another crate, which adds more")]
fn certificate_problem(problem: &CertificateError) -> String {
    match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet"
        }
        CertificateError::Revoked => "it was revoked",
        CertificateError::UnknownIssuer => "no authority that this node trusts signed it",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name"
        }
        CertificateError::BadSignature => "its signature is wrong",
        CertificateError::BadEncoding => "it cannot be read",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not for servers"
        }
        CertificateError::UnhandledCriticalExtension => {
            "it has a critical extension that is not known here"
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "it is signed in a way that is not supported"
        }
        CertificateError::Other(OtherError(other)) => return rare_problem(&other.to_string()),
        other => return in_words(&format!("{other:?}")),
    }
    .to_owned()
}

/// The library that verifies says its rarer problems as names of its own.
fn rare_problem(name: &str) -> String {
    match name {
        "CaUsedAsEndEntity" => "it is the certificate of an authority, not of a server",
        "EndEntityUsedAsCa" => "a certificate that signed it is not that of an authority",
        "NameConstraintViolation" => "an authority signed it that may not sign for this name",
        "PathLenConstraintViolated" | "MaximumPathDepthExceeded" => {
            "there are too many authorities between it and one that this node trusts"
        }
        "UnsupportedCertVersion" => "it is not of version 3",
        "UnsupportedCriticalExtension" => "it has a critical extension that is not known here",
        other => return in_words(other),
    }
    .to_owned()
}

/// `MalformedExtensions` as "malformed extensions".
fn in_words(name: &str) -> String {
    let name = name.split(['(', ' ', '{']).next().unwrap_or_default();
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}
