//! How the clients of Blaxel show their key, how they read a refusal, and what every answer has.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use engine::Caller;
use web::dialect::Dialect;
use web::lost::Fields;
use web::refused::Refused;

use crate::Mounted;
use crate::access::authenticate;
use crate::answer::dress;
use crate::app::App;

/// The words of Blaxel, where a request came in.
pub(crate) struct Words {
    pub(crate) app: App,
    pub(crate) mounted: Mounted,
}

impl Dialect for Words {
    fn authenticate(&self, _: &web::app::App, request: &Request) -> Result<Caller, Refused> {
        authenticate(&self.app, self.mounted, request.uri().path(), request.headers())
    }

    fn refuse(&self, refused: Refused, response: &mut Response, _: &str) {
        self.mounted.refused(refused).write(response);
    }

    fn loss_fields(&self) -> Fields {
        Fields::CAMEL
    }

    fn decorate(&self, response: &mut Response) {
        let needs_key = self.mounted != Mounted::Listener || !self.app.options.keyless;
        dress(response.headers_mut(), needs_key);
    }

    fn at(&self, path: &str) -> Option<Arc<dyn Dialect>> {
        let mounted = self.mounted.at(path);
        let other = || Self { app: self.app.clone(), mounted };
        (mounted != self.mounted).then(|| Arc::new(other()) as Arc<dyn Dialect>)
    }
}
