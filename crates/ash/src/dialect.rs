//! How clients of Ash send their key, and how refusals look to them.

use axum::extract::Request;
use axum::response::Response;
use engine::Caller;
use web::dialect::Dialect;
use web::refused::Refused;
use web::state_loss::LossFields;

use crate::access::authenticate;
use crate::app::App;
use crate::errors::AshError;

/// The dialect of Ash.
pub(crate) struct AshDialect(pub(crate) App);

impl Dialect for AshDialect {
    fn authenticate(&self, _: &web::app::App, request: &Request) -> Result<Caller, Refused> {
        authenticate(&self.0, request.headers())
    }

    fn refuse(&self, refused: Refused, response: &mut Response, _: &str) {
        AshError::from(refused).write(response);
    }

    fn loss_fields(&self) -> LossFields {
        LossFields::CAMEL
    }
}
