//! Why an operation on an image failed. The code is for branching and never changes its meaning;
//! the cause is for people and names the entry, the blob or the limit.

use std::borrow::Cow;
use std::fmt;
use std::io;

use model::{ErrorCode, Refusal, Retry, error_codes};
use tar_stream::TarError;

error_codes! {
    /// What kind of failure.
    pub enum ImageErrorCode {
        /// The code of the API with the same meaning.
        model: ErrorCode,
        /// Whether trying again helps.
        retry: Retry,
        /// What can be done about it.
        remedy: &'static str,
    }
    /// No image of this name or id is in the store.
    Unknown, "image_unknown", ErrorCode::ImageUnknown, Retry::Never, "list the images, or import this one";
    /// A sandbox or a server uses the image.
    InUse, "image_in_use", ErrorCode::ImageInUse, Retry::Never, "end what uses it first, or ask with force";
    /// The source could not be read.
    SourceUnreadable, "source_unreadable", ErrorCode::InvalidArgument, Retry::Never, "check the path and its permissions";
    /// The source is neither an archive nor an image.
    Unrecognised, "unrecognised", ErrorCode::ImageInvalid, Retry::Never, "give a directory, a tar archive, an OCI layout or what `docker save` wrote";
    /// The archive is damaged or cut short.
    Broken, "archive_broken", ErrorCode::ImageInvalid, Retry::Never, "make or fetch the archive again";
    /// An entry of the archive leads, or could lead, out of its directory.
    Unsafe, "archive_unsafe", ErrorCode::ImageInvalid, Retry::Never, "do not use this archive; make one without the named entry";
    /// The archive uses something that is not supported.
    Unsupported, "archive_unsupported", ErrorCode::ImageInvalid, Retry::Never, "make the archive again in the way the cause names";
    /// A digest differs from the one in the image's own description.
    DigestMismatch, "digest_mismatch", ErrorCode::ImageInvalid, Retry::Never, "fetch the image again: it is damaged or was changed";
    /// The image is for another architecture.
    WrongPlatform, "wrong_platform", ErrorCode::ImageInvalid, Retry::Never, "get the image for this machine's kind of processor";
    /// The source holds several images.
    Ambiguous, "several_images", ErrorCode::ImageInvalid, Retry::Never, "say which one is meant";
    /// A limit is reached.
    TooLarge, "image_too_large", ErrorCode::TooLarge, Retry::Never, "make the image smaller, or raise the limit";
    /// The image has more layers than can be mounted.
    TooManyLayers, "too_many_layers", ErrorCode::ImageInvalid, Retry::Never, "flatten it: import what `docker export` writes";
    /// The disk is full.
    NoSpace, "no_space", ErrorCode::StoreUnavailable, Retry::Later, "free disk space: `shoal image gc` removes what nothing uses";
    /// Another process works on the store for longer than we wait.
    Busy, "store_busy", ErrorCode::Overloaded, Retry::Later, "try again when the running import has ended";
    /// The import was cancelled.
    Cancelled, "cancelled", ErrorCode::Aborted, Retry::Never, "import it again if it is still wanted";
    /// The receiver of an archive stopped reading it.
    NotTaken, "archive_not_taken", ErrorCode::ClientGone, Retry::Never, "check the receiver of the archive, then export the image again";
    /// The store could not be read or written.
    Store, "store_failed", ErrorCode::Internal, Retry::Later, "see the error of the operating system; check the permissions of the data directory";
}

/// The longest cause: it contains text from archives, which may be megabytes.
const CAUSE_CHARS_MAX: usize = 2000;

/// A failure: its code, and the cause in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {cause}")]
pub struct ImageError {
    /// The code to branch on.
    pub code: ImageErrorCode,
    /// What happened.
    pub cause: Cow<'static, str>,
}

impl ImageError {
    /// A failure with its cause.
    pub fn new(code: ImageErrorCode, cause: impl Into<Cow<'static, str>>) -> Self {
        let mut cause = cause.into();
        if let Some((end, _)) = cause.char_indices().nth(CAUSE_CHARS_MAX) {
            cause = format!("{} …", &cause[..end]).into();
        }
        Self { code, cause }
    }

    /// The archive is damaged.
    pub(crate) fn broken(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ImageErrorCode::Broken, cause)
    }

    /// The store could not be read or written.
    pub(crate) fn store(what: impl fmt::Display, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        let is_full = full.contains(&error.kind());
        let code = if is_full { ImageErrorCode::NoSpace } else { ImageErrorCode::Store };
        Self::new(code, format!("{what}: {error}"))
    }

    /// The source could not be read. An error of ours that went through a reader is returned
    /// unchanged.
    pub(crate) fn read(what: impl fmt::Display, error: io::Error) -> Self {
        let kind = error.kind();
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(error) => {
                let broken = [
                    io::ErrorKind::UnexpectedEof,
                    io::ErrorKind::InvalidData,
                    io::ErrorKind::InvalidInput,
                ];
                let is_broken = broken.contains(&kind);
                let code = if is_broken {
                    ImageErrorCode::Broken
                } else {
                    ImageErrorCode::SourceUnreadable
                };
                Self::new(code, format!("{what}: {error}"))
            }
        }
    }
}

/// An archive that could not be read.
impl From<TarError> for ImageError {
    fn from(error: TarError) -> Self {
        match error {
            TarError::Read(error) => Self::read("the archive", error),
            TarError::Cut | TarError::Size | TarError::Broken(_) => Self::broken(error.to_string()),
            TarError::TooLarge(_) => Self::new(ImageErrorCode::TooLarge, error.to_string()),
            TarError::Unsupported(_) => Self::new(ImageErrorCode::Unsupported, error.to_string()),
        }
    }
}

/// For readers, which only know I/O errors.
impl From<ImageError> for io::Error {
    fn from(error: ImageError) -> Self {
        Self::other(error)
    }
}

impl From<ImageError> for Refusal {
    fn from(error: ImageError) -> Self {
        Self::new(error.code.model(), error.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_error_codes_are_unique_and_agree_with_the_api() {
        let mut words: Vec<_> = ImageErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), ImageErrorCode::ALL.len());
        for &code in ImageErrorCode::ALL {
            assert!(!code.remedy().is_empty(), "{code}");
            assert_eq!(code.retry(), code.model().retry(), "{code}");
        }
    }

    #[test]
    fn image_error_causes_are_bounded() {
        for (cause, expected) in [("é".repeat(2000), 2000), ("é".repeat(2001), 2002)] {
            let error = ImageError::new(ImageErrorCode::Broken, cause);
            assert_eq!(error.cause.chars().count(), expected);
        }
    }

    #[test]
    fn an_image_error_goes_through_a_reader_unchanged() {
        let ours = ImageError::new(ImageErrorCode::TooLarge, "too much");
        assert_eq!(ImageError::read("x", ours.clone().into()), ours);
        let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(ImageError::read("x", cut).code, ImageErrorCode::Broken);
        let full = io::Error::from_raw_os_error(28);
        assert_eq!(ImageError::store("x", full).code, ImageErrorCode::NoSpace);
    }
}
