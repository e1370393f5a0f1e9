//! The certificates that programs inside trust: those of the image and that of the boundary. Most
//! clients have a variable of their own for them, and a caller's own setting comes first. The others
//! read the files of the system: in native sandboxes these are links to the files here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::InstanceId;
use runtime::{RuntimeError, RuntimeErrorCode, Sandbox};

/// What a sandbox has of its own, readable for all its programs.
const OWN: &str = "/run/shoal";

/// Our certificate alone, for clients that add to what they trust.
const OURS: &str = "boundary.pem";

/// The roots of the image, and ours.
const BUNDLE: &str = "trusted.pem";

/// The same for Java.
const JAVA: &str = "trusted.jks";

/// The store of Java that the image has. Without one, no program needs ours.
const JAVA_OF_IMAGE: &str = "/run/trusted/trusted.jks";

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
    let bundle = REPLACE.iter().map(|name| ((*name).to_owned(), format!("{OWN}/{BUNDLE}")));
    bundle.chain([("NODE_EXTRA_CA_CERTS".to_owned(), format!("{OWN}/{OURS}"))]).collect()
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

/// Writes the files that the variables name, and to which the files of the system lead.
pub(super) async fn write(
    sandbox: &Arc<dyn Sandbox>,
    roots: &Roots,
    ours: &str,
) -> Result<(), RuntimeError> {
    let roots = roots.take(sandbox).await?;
    let bundle = [roots.as_slice(), b"\n", ours.as_bytes()].concat();
    let java = async {
        match sandbox.inside().stat(JAVA_OF_IMAGE).await {
            Ok(_) => replace(sandbox, JAVA, &egress::java_store(&bundle)).await,
            Err(error) if error.code == RuntimeErrorCode::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    };
    let bundle = replace(sandbox, BUNDLE, &bundle);
    let ours = replace(sandbox, OURS, ours.as_bytes());
    tokio::try_join!(bundle, ours, java).map(drop)
}

/// Gives a file its name. There may be a link of that name, and a write would follow it.
async fn replace(
    sandbox: &Arc<dyn Sandbox>,
    name: &str,
    contents: &[u8],
) -> Result<(), RuntimeError> {
    let (new, path) = (format!("{OWN}/.{name}"), format!("{OWN}/{name}"));
    sandbox.inside().write_all(&new, contents, Some(0o444)).await?;
    sandbox.inside().move_file(&new, &path, true).await
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

#[cfg(test)]
mod tests {
    use model::SecretName;

    use super::super::binding::SECRETS;
    use super::*;

    /// Secrets may have any name, and must never take the place of a file of ours.
    #[test]
    fn secrets_and_what_programs_trust_have_directories_of_their_own() {
        for (one, other) in [(SECRETS, OWN), (OWN, SECRETS)] {
            assert!(!model::mount::is_beneath(one, other), "{one} {other}");
        }
        for name in ["../shoal/trusted.pem", "a/b", "..", ".trusted.pem"] {
            assert!(SecretName::new(name).is_err(), "{name} would be elsewhere");
        }
        let ours = format!("{OWN}/");
        let named = variables();
        assert!(named.values().all(|path| path.starts_with(&ours)), "{named:?}");
    }
}
