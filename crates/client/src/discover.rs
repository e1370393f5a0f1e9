//! Finds the server of this machine and its key, as the command line does. It never sends that key
//! to another machine.

use std::path::{Path, PathBuf};

use crate::address::Address;
use crate::error::ClientError;

/// The default address of a server.
pub const DEFAULT_ADDRESS: &str = "http://127.0.0.1:7600";
/// The file in a data directory that holds the secret of the first key.
pub const ADMIN_KEY_FILE: &str = "admin.key";
/// The file in a data directory with the address of its server, and on a second line the path of
/// the key if it is not [`ADMIN_KEY_FILE`].
pub const ADDRESS_FILE: &str = "address";

/// The data directory of a server of root.
const SYSTEM_DATA_DIR: &str = "/var/lib/shoal";
/// Longest file that is read.
const BYTES_MAX: usize = 4096;

/// What is known about the server. What is not given is looked up.
#[derive(Debug, Clone, Default)]
pub struct Discovery {
    /// The server's address.
    pub address: Option<String>,
    /// The secret of a key.
    pub key: Option<String>,
    /// The data directory of a server on this machine.
    pub data_dir: Option<PathBuf>,
    /// The address if nothing else names one.
    pub fallback: Option<String>,
}

/// The default data directory: one for the machine for root, below the home directory for any other
/// user.
pub fn default_data_dir(root: bool, variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    if root {
        return PathBuf::from(SYSTEM_DATA_DIR);
    }
    // The XDG standard says to ignore relative paths.
    let directory = |name: &str| variable(name).filter(|path| path.is_absolute());
    let home = || directory("HOME").map(|home| home.join(".local/share"));
    let above = directory("XDG_DATA_HOME").or_else(home);
    above.map_or_else(|| PathBuf::from(SYSTEM_DATA_DIR), |above| above.join("shoal"))
}

impl Discovery {
    /// From the environment: `SHOAL_URL`, `SHOAL_KEY`, `SHOAL_DATA_DIR`.
    pub fn from_environment() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let root = rustix::process::geteuid().is_root();
        let default = || default_data_dir(root, |name| set(name).map(PathBuf::from));
        Self {
            address: set("SHOAL_URL"),
            key: set("SHOAL_KEY"),
            data_dir: Some(set("SHOAL_DATA_DIR").map_or_else(default, PathBuf::from)),
            fallback: None,
        }
    }

    /// The address, and the secret of a key if there is one.
    pub(crate) fn resolve(self) -> Result<(Address, Option<String>), ClientError> {
        // A data directory is of this machine, whatever address it names.
        let ours = self.address.is_none();
        let named = self.address;
        let read_lines = |name: &str| read(&self.data_dir.as_deref()?.join(name));
        let written = |name: &str| match read_lines(name)? {
            Ok(lines) => lines.into_iter().next().map(Ok),
            Err(error) => Some(Err(error)),
        };
        let lines = |name: &str| read_lines(name).and_then(Result::ok);
        let found = named.or_else(|| written(ADDRESS_FILE).and_then(Result::ok)).or(self.fallback);
        let address = Address::parse(found.as_deref().unwrap_or(DEFAULT_ADDRESS))?;
        let key = match self.key {
            Some(key) => Some(key),
            None if ours || address.is_loopback() => {
                let elsewhere = lines(ADDRESS_FILE).and_then(|lines| lines.into_iter().nth(1));
                written(elsewhere.as_deref().unwrap_or(ADMIN_KEY_FILE)).transpose()?
            }
            None => None,
        };
        Ok((address, key))
    }
}

/// The lines of a file, if there is such a file and anything in it.
fn read(path: &Path) -> Option<Result<Vec<String>, ClientError>> {
    let text = match std::fs::read(path) {
        Ok(bytes) if bytes.len() <= BYTES_MAX => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(_) => return Some(Err(ClientError::invalid(format!("{} is too long", path.display())))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            let cause = format!("cannot read {}: {error}", path.display());
            return Some(Err(ClientError::invalid(cause)));
        }
    };
    let lines: Vec<_> = text.lines().map(|line| line.trim().to_owned()).collect();
    lines.first().is_some_and(|line| !line.is_empty()).then_some(Ok(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_data_dir_follows_the_user() {
        let cases = [
            (true, &[("HOME", "/root")][..], "/var/lib/shoal"),
            (false, &[("HOME", "/home/a")], "/home/a/.local/share/shoal"),
            (false, &[("HOME", "/home/a"), ("XDG_DATA_HOME", "/d")], "/d/shoal"),
            (false, &[("HOME", "/h"), ("XDG_DATA_HOME", "d")], "/h/.local/share/shoal"),
            (false, &[], "/var/lib/shoal"),
        ];
        for (root, env, expected) in cases {
            let variable = |name: &str| {
                env.iter().find(|(known, _)| *known == name).map(|(_, value)| PathBuf::from(value))
            };
            assert_eq!(default_data_dir(root, variable), Path::new(expected), "{root} {env:?}");
        }
    }

    #[test]
    fn discovery_prefers_given_values_to_files() {
        let dir = std::env::temp_dir().join(format!("shoal-discover-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(ADMIN_KEY_FILE), "found-key\n").unwrap();
        let resolved = |address: Option<&str>, key: Option<&str>| {
            let discovery = Discovery {
                address: address.map(str::to_owned),
                key: key.map(str::to_owned),
                data_dir: Some(dir.clone()),
                fallback: Some("127.0.0.1:5".to_owned()),
            };
            let (address, key) = discovery.resolve().unwrap();
            (address.to_string(), key)
        };
        let found = |at: &str| (at.to_owned(), Some("found-key".to_owned()));
        assert_eq!(resolved(None, None), found("http://127.0.0.1:5"));
        std::fs::write(dir.join(ADDRESS_FILE), "http://127.0.0.1:9\n").unwrap();
        assert_eq!(resolved(None, None), found("http://127.0.0.1:9"));
        std::fs::write(dir.join(ADDRESS_FILE), "http://10.0.0.1:9\n").unwrap();
        assert_eq!(resolved(None, None), found("http://10.0.0.1:9"));
        assert_eq!(resolved(Some("localhost:1"), None), found("http://localhost:1"));
        assert_eq!(resolved(None, Some("k")).1.as_deref(), Some("k"));
        std::fs::write(dir.join("other.key"), "other-key\n").unwrap();
        std::fs::write(dir.join(ADDRESS_FILE), "http://127.0.0.1:9\nother.key\n").unwrap();
        assert_eq!(resolved(None, None).1.as_deref(), Some("other-key"));
        let elsewhere = resolved(Some("http://example.org"), None);
        assert_eq!(elsewhere.1, None, "our key stays on this machine");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
