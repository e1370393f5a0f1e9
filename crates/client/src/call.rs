//! One request before it is sent: method, target and body, how long it may take, and whether it may
//! be sent again if the connection breaks.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use serde::Serialize;

use crate::body::{Sent, Upload};
use crate::error::ClientError;
use crate::query::Target;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What is sent with a request.
enum Payload {
    Whole(Bytes),
    Stream(Upload),
}

/// One request.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) target: Target,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    payload: Payload,
    /// How long the answer may take on top of what every answer may.
    pub(crate) extra: Duration,
    /// Whether sending it twice has the same effect as sending it once.
    repeatable: bool,
}

impl Call {
    fn new(method: Method, target: Target) -> Self {
        // These methods are idempotent.
        let repeatable = [Method::GET, Method::PUT, Method::DELETE].contains(&method);
        let (payload, extra) = (Payload::Whole(Bytes::new()), Duration::ZERO);
        Self { method, target, headers: Vec::new(), payload, extra, repeatable }
    }

    pub(crate) fn get(target: Target) -> Self {
        Self::new(Method::GET, target)
    }

    pub(crate) fn post(target: Target) -> Self {
        Self::new(Method::POST, target)
    }

    pub(crate) fn put(target: Target) -> Self {
        Self::new(Method::PUT, target)
    }

    pub(crate) fn patch(target: Target) -> Self {
        Self::new(Method::PATCH, target)
    }

    pub(crate) fn delete(target: Target) -> Self {
        Self::new(Method::DELETE, target)
    }

    /// With a JSON body.
    pub(crate) fn json(mut self, value: &impl Serialize) -> Result<Self, ClientError> {
        let bytes = serde_json::to_vec(value)
            .map_err(|error| ClientError::invalid(format!("cannot write as JSON: {error}")))?;
        self.payload = Payload::Whole(bytes.into());
        self.headers.push((CONTENT_TYPE, JSON));
        Ok(self)
    }

    /// With these bytes as the body.
    #[must_use]
    pub(crate) fn bytes(mut self, bytes: impl Into<Bytes>) -> Self {
        self.payload = Payload::Whole(bytes.into());
        self
    }

    /// With a streamed body.
    #[must_use]
    pub(crate) fn stream(mut self, upload: Upload) -> Self {
        self.payload = Payload::Stream(upload);
        self
    }

    #[must_use]
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    #[must_use]
    pub(crate) fn accept(self, kind: &'static str) -> Self {
        self.header(ACCEPT, HeaderValue::from_static(kind))
    }

    #[must_use]
    pub(crate) fn may_take(mut self, extra: Duration) -> Self {
        self.extra = extra;
        self
    }

    /// Adds an idempotency key, so that the server does it only once.
    #[must_use]
    pub(crate) fn once(mut self) -> Self {
        if let Ok(key) = HeaderValue::from_str(&new_idempotency_key()) {
            self.headers.push((IDEMPOTENCY_KEY, key));
            self.repeatable = true;
        }
        self
    }

    /// The idempotency key, if it has one.
    pub(crate) fn idempotency_key(&self) -> Option<&HeaderValue> {
        let found = self.headers.iter().find(|(name, _)| *name == IDEMPOTENCY_KEY);
        found.map(|(_, key)| key)
    }

    /// Whether it may be sent again after the connection broke.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.repeatable && self.is_whole()
    }

    /// Whether its body can be sent again.
    pub(crate) fn is_whole(&self) -> bool {
        match self.payload {
            Payload::Whole(_) => true,
            Payload::Stream(_) => false,
        }
    }

    /// Its body. A streamed body can be taken once.
    pub(crate) fn body(&mut self) -> Sent {
        match &mut self.payload {
            Payload::Whole(bytes) => Either::Left(Full::new(bytes.clone())),
            Payload::Stream(upload) => {
                let (_, ended) = Upload::channel();
                Either::Right(std::mem::replace(upload, ended))
            }
        }
    }

    /// Its name in errors: method and path.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.method, self.target.path())
    }
}

/// A new idempotency key.
fn new_idempotency_key() -> String {
    format!("{:032x}", random())
}

/// A random number. The standard library seeds its hashers from the randomness of the kernel.
pub(crate) fn random() -> u128 {
    let half = |n: u64| u128::from(RandomState::new().hash_one(n));
    half(0) << 64 | half(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_idempotent_requests_are_sent_again() {
        let at = || Target::new("/v1/x");
        let (_, upload) = Upload::channel();
        let cases = [
            (Call::get(at()), true),
            (Call::delete(at()), true),
            (Call::put(at()).bytes("x"), true),
            (Call::put(at()).stream(upload), false),
            (Call::post(at()), false),
            (Call::post(at()).once(), true),
            (Call::patch(at()), false),
        ];
        for (call, expected) in cases {
            assert_eq!(call.is_repeatable(), expected, "{}", call.name());
        }
        assert_ne!(new_idempotency_key(), new_idempotency_key());
    }
}
