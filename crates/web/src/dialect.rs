//! A dialect: routes that speak another vendor's API. The server itself knows no vendor; a dialect
//! decides how clients send their key, how a refusal looks, and which headers all answers have.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use engine::Caller;

use crate::app::App;
use crate::front::authenticate;
use crate::refused::Refused;
use crate::state_loss::LossFields;

/// How one vendor's clients authenticate and read answers.
pub trait Dialect: Send + Sync + 'static {
    /// Finds the caller by the key in the request.
    fn authenticate(&self, app: &App, request: &Request) -> Result<Caller, Refused>;

    /// Writes a refusal into an answer.
    fn refuse(&self, refused: Refused, response: &mut Response, request_id: &str);

    /// The names of the JSON fields that report lost files.
    fn loss_fields(&self) -> LossFields;

    /// Adds the headers that every answer of this dialect has.
    fn add_default_headers(&self, _response: &mut Response) {}

    /// Another dialect for one path beneath the same routes.
    fn at(&self, _path: &str) -> Option<Arc<dyn Dialect>> {
        None
    }
}

/// Our own API: problems, and keys in the `Authorization` header.
struct Own;

/// The dialect of our own API.
pub fn own() -> Arc<dyn Dialect> {
    Arc::new(Own)
}

impl Dialect for Own {
    fn authenticate(&self, app: &App, request: &Request) -> Result<Caller, Refused> {
        authenticate(app, request.headers())
    }

    fn refuse(&self, refused: Refused, response: &mut Response, request_id: &str) {
        refused.write(response, request_id);
    }

    fn loss_fields(&self) -> LossFields {
        LossFields::SNAKE
    }
}
