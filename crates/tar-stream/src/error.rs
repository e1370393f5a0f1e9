//! Why an archive cannot be read.

use std::borrow::Cow;
use std::{error, fmt, io};

/// Why an archive cannot be read.
#[derive(Debug)]
pub enum TarError {
    /// The bytes could not be read.
    Read(io::Error),
    /// The archive ends in the middle.
    Cut,
    /// The archive is damaged, or not an archive.
    Broken(Cow<'static, str>),
    /// An entry claims more bytes than any file can have.
    Size,
    /// The archive exceeds a bound.
    TooLarge(Cow<'static, str>),
    /// An archive of an unsupported kind.
    Unsupported(&'static str),
}

impl TarError {
    pub(crate) fn broken(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::Broken(cause.into())
    }
}

impl fmt::Display for TarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::Cut => f.write_str("the archive ends in the middle"),
            Self::Size => f.write_str(
                "the archive cannot be read: the size of an entry is more than any file can have",
            ),
            Self::Broken(cause) | Self::TooLarge(cause) => {
                write!(f, "the archive cannot be read: {cause}")
            }
            Self::Unsupported(cause) => write!(f, "the archive cannot be read: {cause}"),
        }
    }
}

impl error::Error for TarError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Read(error) => Some(error),
            Self::Cut | Self::Size | Self::Broken(_) | Self::TooLarge(_) | Self::Unsupported(_) => {
                None
            }
        }
    }
}

impl From<TarError> for io::Error {
    fn from(error: TarError) -> Self {
        match error {
            TarError::Read(error) => error,
            TarError::Cut => Self::new(io::ErrorKind::UnexpectedEof, error),
            TarError::Size
            | TarError::Broken(_)
            | TarError::TooLarge(_)
            | TarError::Unsupported(_) => Self::new(io::ErrorKind::InvalidData, error),
        }
    }
}
