//! Leases and sessions that a tool created. The caller owns them as soon as the answer is taken for
//! writing; if the answer is dropped before, they are taken back, as on the routes that create
//! them.

use std::sync::{Arc, Mutex, PoisonError};

use engine::Caller;
use model::{LeaseId, SessionId};
use tracing::field::display;

use web::app::App;
use web::handed_out::HandoverGuard;

/// What was created while one message was answered.
#[derive(Clone, Default)]
pub(super) struct Created(Arc<Mutex<Vec<Unconfirmed>>>);

impl Created {
    pub(super) fn lease(&self, app: &App, caller: Caller, lease: LeaseId) {
        self.push(Unconfirmed { app: app.clone(), caller, thing: Some(Kind::Lease(lease)) });
    }

    pub(super) fn session(&self, app: &App, caller: Caller, session: SessionId) {
        self.push(Unconfirmed { app: app.clone(), caller, thing: Some(Kind::Session(session)) });
    }

    fn push(&self, made: Unconfirmed) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(made);
    }
}

impl HandoverGuard for Created {
    fn keep(self) {
        for mut made in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = made.thing.take();
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Lease(LeaseId),
    Session(SessionId),
}

/// A lease or session whose caller has no answer yet. Dropped, it is taken back.
struct Unconfirmed {
    app: App,
    caller: Caller,
    thing: Option<Kind>,
}

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        let Some(thing) = self.thing.take() else { return };
        let (app, caller) = (self.app.clone(), self.caller);
        tasks::spawn(async move {
            let taken_back = match thing {
                Kind::Lease(lease) => app.engine.return_lease(caller, lease).await,
                Kind::Session(session) => app.engine.end_session(caller, session).await.map(drop),
            };
            if let Err(error) = taken_back {
                let (lease, session) = match thing {
                    Kind::Lease(lease) => (Some(display(lease)), None),
                    Kind::Session(session) => (None, Some(display(session))),
                };
                tracing::warn!(lease, session, %error, "taking back an undelivered creation failed");
            }
        });
    }
}
