//! The variable parts of a route's path. A malformed id is answered with 404, like an unknown one.

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path};
use engine::ProcessRef;
use http::request::Parts;
use model::{
    ErrorCode, ImageName, KeyId, LeaseId, SandboxId, SecretName, SessionId, TemplateName, TurnId,
};

use crate::refused::Refused;

/// The thing that the path names.
#[derive(Debug)]
pub struct Named<T>(pub T);

/// What a path can name.
pub trait Name: Sized {
    /// Reads a part of a path.
    fn read(text: &str) -> Result<Self, Refused>;
}

fn id<T: FromStr>(text: &str, code: ErrorCode) -> Result<T, Refused> {
    let unknown = |_| {
        let example = "0192f3a0-7c1e-7a52-8b3d-5e6f70819203";
        Refused::new(code, format!("{text:?} is not a valid id: ids look like {example}"))
    };
    text.parse().map_err(unknown)
}

impl Name for SandboxId {
    fn read(text: &str) -> Result<Self, Refused> {
        id(text, ErrorCode::SandboxUnknown)
    }
}

impl Name for LeaseId {
    fn read(text: &str) -> Result<Self, Refused> {
        id(text, ErrorCode::LeaseUnknown)
    }
}

impl Name for SessionId {
    fn read(text: &str) -> Result<Self, Refused> {
        id(text, ErrorCode::SessionUnknown)
    }
}

impl Name for TurnId {
    fn read(text: &str) -> Result<Self, Refused> {
        id(text, ErrorCode::TurnUnknown)
    }
}

impl Name for ProcessRef {
    /// An id, a process id inside, or a name.
    fn read(text: &str) -> Result<Self, Refused> {
        Ok(Self::parse(text))
    }
}

/// A port inside a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortNumber(pub u16);

impl Name for PortNumber {
    fn read(text: &str) -> Result<Self, Refused> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| digits && *number > 0);
        let cause = || format!("{text:?} is not a valid port: ports are numbers from 1 to 65535");
        number.map(Self).ok_or_else(|| Refused::new(ErrorCode::NotFound, cause()))
    }
}

impl Name for KeyId {
    fn read(text: &str) -> Result<Self, Refused> {
        id(text, ErrorCode::NotFound)
    }
}

impl Name for TemplateName {
    fn read(text: &str) -> Result<Self, Refused> {
        let unknown =
            |error| Refused::new(ErrorCode::TemplateUnknown, format!("{text:?}: {error}"));
        Self::new(text).map_err(unknown)
    }
}

impl Name for SecretName {
    fn read(text: &str) -> Result<Self, Refused> {
        Self::new(text).map_err(|problem| Refused::invalid("secret", problem))
    }
}

/// Something that names an image: its name, its id, or a beginning of that.
#[derive(Debug)]
pub struct ImageReference(pub String);

impl Name for ImageReference {
    fn read(text: &str) -> Result<Self, Refused> {
        let fits = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._:-".contains(&byte)
        };
        if text.len() <= ImageName::MAX_LEN && text.bytes().all(fits) {
            return Ok(Self(text.to_owned()));
        }
        let cause = "the path has no valid name or id of an image";
        Err(Refused::new(ErrorCode::ImageUnknown, cause))
    }
}

impl Name for ErrorCode {
    fn read(text: &str) -> Result<Self, Refused> {
        let unknown =
            || Refused::new(ErrorCode::NotFound, format!("the error code {text:?} does not exist"));
        Self::ALL.iter().copied().find(|code| code.as_str() == text).ok_or_else(unknown)
    }
}

impl<T: Name, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(text) = path.map_err(|_| not_text())?;
        T::read(&text).map(Self)
    }
}

/// The only reason why a path cannot be read.
fn not_text() -> Refused {
    Refused::new(ErrorCode::NotFound, "a part of the path is not UTF-8")
}

/// Something of a thing that the path names, and that thing.
#[derive(Debug)]
pub struct NamedOf<T, U>(pub T, pub U);

impl<T: Name, U: Name, S: Send + Sync> FromRequestParts<S> for NamedOf<T, U> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((of, what)) = path.map_err(|_| not_text())?;
        Ok(Self(T::read(&of)?, U::read(&what)?))
    }
}
