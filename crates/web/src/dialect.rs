//! A dialect: in whose words a route answers. Serving HTTP knows no vendor; a dialect says how its
//! clients show their key, how they read a refusal, and what all its answers have.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use engine::Caller;

use crate::app::App;
use crate::front::authenticate;
use crate::refused::Refused;
use crate::state_loss::LossFields;

/// The words of some clients.
pub trait Dialect: Send + Sync + 'static {
    /// Who asks.
    fn authenticate(&self, app: &App, request: &Request) -> Result<Caller, Refused>;

    /// Makes an answer a refusal.
    fn refuse(&self, refused: Refused, response: &mut Response, request_id: &str);

    /// How the fields that report lost files are called.
    fn loss_fields(&self) -> LossFields;

    /// Adds what every answer in these words has.
    fn add_default_headers(&self, _response: &mut Response) {}

    /// Other words for one path beneath the same routes.
    fn at(&self, _path: &str) -> Option<Arc<dyn Dialect>> {
        None
    }
}

/// Our own words: problems, and keys in the `Authorization` header.
struct Own;

/// Our own words.
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
