//! The file with the key of a node: a line of text beside the database, readable by its owner only.
//! A start makes it once and never again: if a key is missing, a new one would make sealed data
//! unreadable for good. Only a rotation makes another one, in a second file, and seals everything
//! anew before it puts that file in the place of the first.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use crate::error::{StoreError, StoreErrorCode};
use sealing::{NodeKey, SECRET_BYTES};

/// The name of the file in the data directory.
pub const NODE_KEY_FILE: &str = "node.key";
/// The name of the file with the next key, while a rotation is in progress.
pub(crate) const NEXT_KEY_FILE: &str = "node.key.next";

/// The prefix of the line.
const MARK: &str = "shoal-node-key-v1";
/// More than the line ever has.
const BYTES_MAX: u64 = 256;

/// The key in a directory, if there is a file with one. A file that is not a valid key is an error,
/// never treated as absent.
pub fn read_node_key(directory: &Path) -> Result<Option<NodeKey>, StoreError> {
    read_key(&directory.join(NODE_KEY_FILE))
}

/// The key for which a rotation seals everything anew, if there is a file with one.
pub(crate) fn read_next_key(directory: &Path) -> Result<Option<NodeKey>, StoreError> {
    read_key(&directory.join(NEXT_KEY_FILE))
}

fn read_key(path: &Path) -> Result<Option<NodeKey>, StoreError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        // A key that others can read is not accepted.
        if file.metadata()?.permissions().mode() & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
        }
        file.take(BYTES_MAX).read_to_string(&mut text)
    });
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(garbled(path)),
        Err(error) => {
            let cause = format!("read {}: {error}", path.display());
            return Err(StoreError::new(StoreErrorCode::Io, cause));
        }
    }
    parsed(&text).map(Some).ok_or_else(|| garbled(path))
}

/// Makes the key of a new node and its file: complete and on the disk when this returns, or absent.
pub(crate) fn make_node_key(directory: &Path) -> Result<NodeKey, StoreError> {
    make_key(directory, NODE_KEY_FILE)
}

/// Makes the next key and its file, which belongs to the owner of the present one.
pub(crate) fn make_next_key(directory: &Path) -> Result<NodeKey, StoreError> {
    make_key(directory, NEXT_KEY_FILE)
}

/// Removes the file of a next key that was not used.
pub(crate) fn remove_next_key(directory: &Path) -> io::Result<()> {
    remove(&beside(directory, NEXT_KEY_FILE))?;
    remove(&directory.join(NEXT_KEY_FILE))
}

/// Puts the next key in the place of the present one, for good.
pub(crate) fn use_next_key(directory: &Path) -> io::Result<()> {
    fs::rename(directory.join(NEXT_KEY_FILE), directory.join(NODE_KEY_FILE))?;
    File::open(directory)?.sync_all()
}

fn make_key(directory: &Path, name: &str) -> Result<NodeKey, StoreError> {
    let (path, beside) = (directory.join(name), beside(directory, name));
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut secret).map_err(|error| {
        StoreError::new(StoreErrorCode::Io, format!("no random numbers for a key: {error}"))
    })?;
    let key = NodeKey::from_secret(&secret);
    let write = || -> io::Result<()> {
        // Left by a run that was killed here.
        remove(&beside)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
        if let Ok(present) = fs::metadata(directory.join(NODE_KEY_FILE))
            && present.uid() != file.metadata()?.uid()
        {
            // The server runs as another user than this command.
            fchown(&file, Some(present.uid()), Some(present.gid()))?;
        }
        writeln!(file, "{MARK} {} {}", hex(&key.id()), hex(&secret))?;
        file.sync_all()?;
        fs::rename(&beside, &path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|error| {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        let is_full = full.contains(&error.kind());
        let code = if is_full { StoreErrorCode::DiskFull } else { StoreErrorCode::Io };
        StoreError::new(code, format!("write {}: {error}", path.display()))
    })?;
    Ok(key)
}

/// The name of a file that is not complete yet.
fn beside(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!(".{name}.new"))
}

/// Removes a file. A missing one is no error.
pub(crate) fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The key in a line. The line has its id too, so that a changed line is detected.
fn parsed(text: &str) -> Option<NodeKey> {
    let mut words = text.split_ascii_whitespace();
    let (mark, id, secret) = (words.next()?, words.next()?, words.next()?);
    if mark != MARK || words.next().is_some() {
        return None;
    }
    let key = NodeKey::from_secret(&unhex(secret)?);
    (unhex(id)? == key.id()).then_some(key)
}

fn garbled(path: &Path) -> StoreError {
    let cause = format!("{} exists and has no valid key in it", path.display());
    StoreError::new(StoreErrorCode::NodeKeyWrong, cause)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |one: u8| char::from(one).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealing::Place;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("store-node-key-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn node_key_reads_back_and_is_private_to_its_owner() {
        let directory = Directory::new("made");
        assert!(read_node_key(&directory.0).unwrap().is_none());
        // Left by a run that was killed.
        fs::write(directory.0.join(".node.key.new"), "half").unwrap();
        let made = make_node_key(&directory.0).unwrap();
        let file = directory.0.join(NODE_KEY_FILE);
        let mode = || fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let read = read_node_key(&directory.0).unwrap().unwrap();
        assert_eq!(mode(), 0o600);
        let place = Place::new("t");
        let envelope = made.seal(&place, b"a").unwrap();
        assert_eq!(read.open(&place, &envelope).unwrap(), b"a");
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1, "nothing lies beside it");
    }

    #[test]
    fn node_key_file_that_was_changed_is_refused_and_not_treated_as_absent() {
        let directory = Directory::new("changed");
        make_node_key(&directory.0).unwrap();
        let file = directory.0.join(NODE_KEY_FILE);
        let good = fs::read(&file).unwrap();
        let mut flipped = good.clone();
        let last_digit = flipped.len() - 2;
        flipped[last_digit] = if flipped[last_digit] == b'0' { b'1' } else { b'0' };
        let twice = [good.clone(), good.clone()].concat();
        for (what, bytes) in [
            ("empty", Vec::new()),
            ("cut", good[..good.len() - 10].to_vec()),
            ("one digit", flipped),
            ("not text", vec![0xff; 100]),
            ("another line", twice),
            ("another version", b"shoal-node-key-v2 00 00\n".to_vec()),
        ] {
            fs::write(&file, bytes).unwrap();
            let error = read_node_key(&directory.0).unwrap_err();
            assert_eq!(error.code, StoreErrorCode::NodeKeyWrong, "{what}");
        }
        fs::write(&file, good).unwrap();
        assert!(read_node_key(&directory.0).unwrap().is_some());
    }
}
