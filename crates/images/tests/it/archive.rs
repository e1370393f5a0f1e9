//! Archives for tests, valid or invalid.

use std::io::Write as _;

use flate2::write::GzEncoder;

/// Entries one after the other.
#[derive(Default, Clone)]
pub(crate) struct Archive(Vec<u8>);

impl Archive {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds an entry that is only a header and its contents, whatever they are.
    pub(crate) fn raw(
        mut self,
        kind: u8,
        path: &[u8],
        link: &[u8],
        mode: u32,
        data: &[u8],
    ) -> Self {
        let mut block = *tar::Header::new_gnu().as_bytes();
        block[..100].fill(0);
        block[..path.len()].copy_from_slice(path);
        block[157..157 + link.len()].copy_from_slice(link);
        block[156] = kind;
        let header = tar::Header::from_byte_slice(&block);
        let mut header = header.clone();
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.bytes(data)
    }

    /// Changes the header that was added last, of an entry without contents.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut tar::Header)) -> Self {
        let at = self.0.len() - 512;
        let mut header = tar::Header::from_byte_slice(&self.0[at..]).clone();
        change(&mut header);
        header.set_cksum();
        self.0[at..].copy_from_slice(header.as_bytes());
        self
    }

    /// Adds bytes, and zeros up to the end of their block.
    pub(crate) fn bytes(mut self, data: &[u8]) -> Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, path: &str, data: &[u8]) -> Self {
        self.raw(b'0', path.as_bytes(), b"", 0o644, data)
    }

    pub(crate) fn directory(self, path: &str) -> Self {
        self.raw(b'5', path.as_bytes(), b"", 0o755, b"")
    }

    pub(crate) fn symlink(self, path: &str, to: &str) -> Self {
        self.raw(b'2', path.as_bytes(), to.as_bytes(), 0o777, b"")
    }

    pub(crate) fn hardlink(self, path: &str, to: &str) -> Self {
        self.raw(b'1', path.as_bytes(), to.as_bytes(), 0o644, b"")
    }

    /// Adds an extended header.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length += 1;
            }
            write!(data, "{length} {key}=").unwrap();
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        self.raw(b'x', b"pax", b"", 0o644, &data)
    }

    /// The archive without an end.
    pub(crate) fn open(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ::zstd::encode_all(bytes, 1).unwrap()
}
