//! The certificates that programs inside trust: those of the image and that of the boundary. Every
//! client has a variable of its own for them; a caller's own setting comes first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::InstanceId;
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

/// The roots of the images of sandboxes that no user has had, read when they became warm. Sandboxes
/// of one image share them.
#[derive(Default)]
pub(super) struct Roots {
    by_instance: Mutex<BTreeMap<InstanceId, Arc<Vec<u8>>>>,
}

impl Roots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Arc<Vec<u8>>>> {
        self.by_instance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads those of a sandbox. If that fails, its claim reads them.
    pub(super) async fn learn(&self, sandbox: &Arc<dyn Sandbox>) {
        let Ok(read) = roots_of(sandbox).await else { return };
        let mut known = self.lock();
        let same = known.values().find(|other| ***other == read).cloned();
        known.insert(sandbox.instance(), same.unwrap_or_else(|| Arc::new(read)));
    }

    pub(super) fn forget(&self, instance: InstanceId) {
        self.lock().remove(&instance);
    }

    /// Those of a sandbox, for its first user: later ones may have written others.
    async fn take(&self, sandbox: &Arc<dyn Sandbox>) -> Result<Arc<Vec<u8>>, RuntimeError> {
        let known = self.lock().remove(&sandbox.instance());
        match known {
            Some(known) => Ok(known),
            None => roots_of(sandbox).await.map(Arc::new),
        }
    }
}

/// Writes the files that the variables name.
pub(super) async fn write(
    sandbox: &Arc<dyn Sandbox>,
    roots: &Roots,
    ours: &str,
) -> Result<(), RuntimeError> {
    let roots = roots.take(sandbox).await?;
    let bundle = [roots.as_slice(), b"\n", ours.as_bytes()].concat();
    let inside = sandbox.inside();
    let (all, own) = (format!("{SECRETS}/{BUNDLE}"), format!("{SECRETS}/{OURS}"));
    tokio::try_join!(
        inside.write_all(&all, &bundle, Some(0o444)),
        inside.write_all(&own, ours.as_bytes(), Some(0o444)),
    )?;
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
