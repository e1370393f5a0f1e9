//! How clients of Blaxel send their key, how refusals look to them, and the headers of every
//! answer.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use engine::Caller;
use web::dialect::Dialect;
use web::refused::Refused;
use web::state_loss::LossFields;

use crate::Mounted;
use crate::access::authenticate;
use crate::answer::add_default_headers;
use crate::app::App;

/// The dialect of Blaxel, where a request came in.
pub(crate) struct BlaxelDialect {
    pub(crate) app: App,
    pub(crate) mounted: Mounted,
}

impl Dialect for BlaxelDialect {
    fn authenticate(&self, _: &web::app::App, request: &Request) -> Result<Caller, Refused> {
        authenticate(&self.app, self.mounted, request.uri().path(), request.headers())
    }

    fn refuse(&self, refused: Refused, response: &mut Response, _: &str) {
        self.mounted.refused(refused).write(response);
    }

    fn loss_fields(&self) -> LossFields {
        LossFields::CAMEL
    }

    fn add_default_headers(&self, response: &mut Response) {
        add_default_headers(response.headers_mut());
    }

    fn at(&self, path: &str) -> Option<Arc<dyn Dialect>> {
        let mounted = self.mounted.at(path);
        let other = || Self { app: self.app.clone(), mounted };
        (mounted != self.mounted).then(|| Arc::new(other()) as Arc<dyn Dialect>)
    }
}
