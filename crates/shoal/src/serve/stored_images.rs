//! The image store as the source of images for a Docker engine. A failed write of the reader is
//! returned unchanged; errors of the store are returned with their cause.

use std::io::{self, Write};

use images::Store;
use model::ImageId;
use runtime::docker;

/// The images of a store.
#[derive(Debug, Clone)]
pub(super) struct StoredImages {
    store: Store,
}

impl StoredImages {
    pub(super) fn new(store: Store) -> Self {
        Self { store }
    }
}

impl docker::StoredImages for StoredImages {
    fn write_archive(&self, image: ImageId, tag: &str, to: &mut dyn Write) -> io::Result<()> {
        let mut capture = ErrorCapture { to, failure: None };
        let written = self.store.write_archive(image, tag, &mut capture);
        written.map_err(|error| capture.failure.unwrap_or_else(|| error.into()))
    }
}

/// Keeps the error of the writer: after it went through the store, only its text would be left.
struct ErrorCapture<'a> {
    to: &'a mut dyn Write,
    failure: Option<io::Error>,
}

impl ErrorCapture<'_> {
    /// After a failure nothing is written.
    fn check(&self) -> io::Result<()> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.kind().into()))
    }

    fn keep<T>(&mut self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.map_err(|error| {
            let kind = error.kind();
            // Not a failure: the caller tries again.
            if kind != io::ErrorKind::Interrupted {
                self.failure = Some(error);
            }
            kind.into()
        })
    }
}

impl Write for ErrorCapture<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        let outcome = self.to.write(bytes);
        self.keep(outcome)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        let outcome = self.to.flush();
        self.keep(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use images::{ImageError, ImageErrorCode, ImportOptions, Source};
    use model::ImageName;
    use runtime::docker::StoredImages as _;

    use super::*;

    /// Takes so many bytes, and is interrupted before each time.
    struct Reader {
        taken: Vec<u8>,
        bytes_max: usize,
        is_interrupted: bool,
        failures: usize,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.is_interrupted = !self.is_interrupted;
            if self.is_interrupted {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if self.taken.len() + bytes.len() > self.bytes_max {
                self.failures += 1;
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the engine went away"));
            }
            self.taken.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn image_archive_errors_keep_their_kind_and_cause() {
        let place = std::env::temp_dir().join(format!("shoal-stored-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(place.join("root")).unwrap();
        std::fs::write(place.join("root/file"), vec![7; 1 << 20]).unwrap();
        let store = Store::open(&place.join("store")).unwrap();
        let (source, name) = (Source::Path(place.join("root")), ImageName::new("a").unwrap());
        let mut watch = |_: &_| ControlFlow::Continue(());
        let imported = store.import(source, &name, &ImportOptions::default(), &mut watch);
        let id = imported.unwrap().id;
        let images = StoredImages::new(store);
        let attempt = |id, bytes_max| {
            let mut to =
                Reader { taken: Vec::new(), bytes_max, is_interrupted: false, failures: 0 };
            let outcome = images.write_archive(id, "shoal/image:a", &mut to);
            (outcome, to)
        };

        let (outcome, whole) = attempt(id, usize::MAX);
        outcome.unwrap();
        assert!(whole.taken.len() > 1 << 20);
        for bytes_max in [0, 600_000, whole.taken.len() - 1] {
            let (outcome, to) = attempt(id, bytes_max);
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            assert_eq!(error.to_string(), "the engine went away");
            assert_eq!(to.failures, 1, "it is left alone after that");
        }
        let (outcome, to) = attempt(ImageId::from_bytes([7; 32]), usize::MAX);
        let ours = outcome.unwrap_err().downcast::<ImageError>().unwrap();
        assert_eq!((ours.code, to.taken.len()), (ImageErrorCode::Unknown, 0));
        std::fs::remove_dir_all(&place).unwrap();
    }
}
