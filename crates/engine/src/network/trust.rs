//! The certificates that programs inside trust: those of the image and that of the boundary. Every
//! client has a variable of its own for them; a caller's own setting comes first.

use std::collections::BTreeMap;
use std::sync::Arc;

use runtime::{RuntimeError, RuntimeErrorCode, Sandbox};

use super::binding::SECRETS;

/// Our certificate alone, for clients that add to what they trust.
const OURS: &str = "shoal-boundary.pem";

/// The roots of the image, and ours.
const BUNDLE: &str = "shoal-trusted.pem";

/// Where images keep their roots; the first that exists counts.
const ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The most bytes of the roots of an image.
const ROOTS_BYTES_MAX: u64 = 2 << 20;

/// Variables whose clients replace what they trust.
const REPLACE: [&str; 12] = [
    "AWS_CA_BUNDLE",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
    "NIX_SSL_CERT_FILE",
    "NPM_CONFIG_CAFILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];

/// The variables of all clients.
pub(super) fn variables() -> BTreeMap<String, String> {
    let bundle = REPLACE.iter().map(|name| ((*name).to_owned(), format!("{SECRETS}/{BUNDLE}")));
    bundle.chain([("NODE_EXTRA_CA_CERTS".to_owned(), format!("{SECRETS}/{OURS}"))]).collect()
}

/// Writes the files that the variables name.
pub(super) async fn write(sandbox: &Arc<dyn Sandbox>, ours: &str) -> Result<(), RuntimeError> {
    let mut bundle = roots_of(sandbox).await?;
    bundle.push(b'\n');
    bundle.extend_from_slice(ours.as_bytes());
    let inside = sandbox.inside();
    inside.write_all(&format!("{SECRETS}/{BUNDLE}"), &bundle, Some(0o444)).await?;
    inside.write_all(&format!("{SECRETS}/{OURS}"), ours.as_bytes(), Some(0o444)).await?;
    Ok(())
}

async fn roots_of(sandbox: &Arc<dyn Sandbox>) -> Result<Vec<u8>, RuntimeError> {
    for path in ROOTS {
        match sandbox.inside().read_all(path, ROOTS_BYTES_MAX).await {
            Err(error) if error.code == RuntimeErrorCode::NotFound => {}
            read => return read,
        }
    }
    Ok(Vec::new())
}
