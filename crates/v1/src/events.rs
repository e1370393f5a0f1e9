//! Events, as a page or as a stream. A stream reads from the stored history, so a slow reader costs
//! nothing and misses nothing, and a client that was away gets a `reset` if events were deleted.
//! Transitions of states are inserted from memory, as far as memory still has them.

use std::mem;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use engine::{Caller, EventQuery, EventWatch, TransitionPage, TransitionQuery, TransitionWatch};
use http::HeaderMap;
use model::{ErrorCode, SandboxId, SessionId, StoredEvent};
use tokio::time::{Instant, sleep_until};
use wire::{Event, EventList, EventsReset};

use crate::accepts;
use web::answer;
use web::app::App;
use web::front::{By, Needs};
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;
use web::operation::{Content, Kind, Operation, Param, Route, Verb, json};
use web::path::Named;
use web::query::Query;
use web::refused::Refused;
use web::stream::{self, BodySource, Format, HEARTBEAT, SSE};

const PAGE: u64 = 100;
const PAGE_MAX: u64 = 1000;
/// How many a stream reads at once. A client that does not read makes the server hold them.
const STREAM_PAGE: u32 = 64;
/// The largest number of an event in a store.
pub(super) const AFTER_MAX: u64 = i64::MAX as u64;
/// How often a stream looks for transitions. Each exec of each key makes two of them: streams
/// that woke up for every one would cost more than the execs.
const STATES_EVERY: Duration = Duration::from_millis(100);
/// How often all streams of a key together look for events. Each commit could wake each of them,
/// and a key with hundreds of streams would then keep the server from the work of other keys.
const LOOKS_PER_S: u32 = 1_000;
/// How many events all streams of a key together read. A history is read and written again for each
/// of them.
const EVENTS_PER_S: u32 = 16_000;
const LAST_EVENT_ID: &str = "last-event-id";

const AFTER: Param = Param::new(
    "after",
    Kind::Number(0, AFTER_MAX),
    "Only events with a higher number. Not given: a page begins with the oldest event, a stream with the next one",
);
const LIMIT: Param =
    Param::new("limit", Kind::Number(1, PAGE_MAX), "The most events in a page; 100 if not given");
pub(super) const RESUME: Param = Param::new(
    "Last-Event-ID",
    Kind::Number(0, AFTER_MAX),
    "The last event that the client read: the stream continues after it",
);
const STREAM_OR_PAGE: &str = "A stream of `Event`s; a page of them if only `application/json` is accepted. A stream \
    has a `reset` event if events were deleted, or if the history is another one. Only streams have \
    `sandbox_state`, a change of the state of a sandbox";

pub(super) fn routes() -> Vec<Route> {
    let operation = |id, about| {
        let content = [json("EventList"), Content(SSE, Some("Event"))];
        Operation::new(id, about).answers(200, STREAM_OR_PAGE, content)
    };
    let all = operation("list_events", "List events, or stream them");
    let of_one = operation("list_sandbox_events", "List or stream the events of one sandbox");
    let of_session = operation(
        "list_session_events",
        "List or stream the events of one session; of an ended one as long as they are stored",
    );
    vec![
        Route::new(
            Verb::Get,
            "/v1/events",
            Needs::Read,
            self::all,
            all.query([AFTER, LIMIT])
                .headers([RESUME])
                .refuses(&[ErrorCode::StoreUnavailable, ErrorCode::ShuttingDown]),
        ),
        Route::new(
            Verb::Get,
            "/v1/sandboxes/{id}/events",
            Needs::Read,
            one,
            of_one.query([AFTER, LIMIT]).headers([RESUME]).refuses(&[
                ErrorCode::SandboxUnknown,
                ErrorCode::StoreUnavailable,
                ErrorCode::ShuttingDown,
            ]),
        ),
        Route::new(
            Verb::Get,
            "/v1/sessions/{id}/events",
            Needs::Read,
            session,
            of_session.query([AFTER, LIMIT]).headers([RESUME]).refuses(&[
                ErrorCode::SessionUnknown,
                ErrorCode::StoreUnavailable,
                ErrorCode::ShuttingDown,
            ]),
        ),
    ]
}

async fn all(
    State(app): State<App>,
    By(caller): By,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    stream_or_page(&app, caller, query, &headers, EventFilter::default()).await
}

async fn one(
    State(app): State<App>,
    By(caller): By,
    query: Query,
    Named(id): Named<SandboxId>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    // Also of an ended one, as long as something is stored of it.
    app.engine.why(caller, id).await?;
    stream_or_page(&app, caller, query, &headers, EventFilter { sandbox: Some(id), session: None })
        .await
}

async fn session(
    State(app): State<App>,
    By(caller): By,
    query: Query,
    Named(id): Named<SessionId>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let of = EventFilter { sandbox: None, session: Some(id) };
    if let Err(unknown) = app.engine.check_session(caller, id) {
        // A session that ended long ago is known by its events alone.
        let page = app.engine.events(caller, of.query(0, 1)).await?;
        if page.events.is_empty() {
            return Err(unknown.into());
        }
    }
    stream_or_page(&app, caller, query, &headers, of).await
}

/// Which events; all that the caller may see if neither is named.
#[derive(Debug, Clone, Copy, Default)]
struct EventFilter {
    sandbox: Option<SandboxId>,
    session: Option<SessionId>,
}

impl EventFilter {
    const fn query(self, after: u64, limit: u32) -> EventQuery {
        let Self { sandbox, session } = self;
        EventQuery { sandbox, session, ..EventQuery::after(after, limit) }
    }
}

async fn stream_or_page(
    app: &App,
    caller: Caller,
    mut query: Query,
    headers: &HeaderMap,
    of: EventFilter,
) -> Result<Response, Refused> {
    let after = query.number("after", 0..=AFTER_MAX)?;
    let limit = query.number("limit", 1..=PAGE_MAX)?;
    query.done()?;
    let after = last_event_id(headers)?.or(after);
    if accepts(headers, "application/json") && !accepts(headers, SSE) {
        return page(app, caller, after.unwrap_or(0), limit.unwrap_or(PAGE), of).await;
    }
    let slot = app.long_lived.begin(caller.key)?;
    let (watch, states) = (app.engine.watch(), app.engine.watch_transitions());
    let events = EventStream {
        _slot: slot,
        app: app.clone(),
        caller,
        of,
        after: after.unwrap_or_else(|| watch.last()),
        // A stream that begins now missed nothing.
        looks_back: after.is_some(),
        told: 0,
        resumed: after.is_some(),
        watch,
        since: after.unwrap_or(0),
        // A client that resumes gets the transitions since then.
        place: if after.is_some() { 0 } else { states.last() },
        states,
        looked_at: Instant::now(),
        read_last: 0,
        said_at: Instant::now(),
        begun: false,
        key: KeyWatch::new(caller.key),
        ready: Vec::new(),
        over: false,
    };
    Ok(stream::response(Format::Sse, events))
}

/// The last event that a client says it has read.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Refused> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    let number = number.filter(|number| *number <= AFTER_MAX);
    let wrong = || Refused::bad("Last-Event-ID", "Last-Event-ID is not a number");
    Ok(Some(number.ok_or_else(wrong)?))
}

async fn page(
    app: &App,
    caller: Caller,
    after: u64,
    limit: u64,
    of: EventFilter,
) -> Result<Response, Refused> {
    let page = app.engine.events(caller, of.query(after, limit as u32)).await?;
    let (oldest, last) = (page.oldest, page.last);
    let events: Vec<_> = page.events.into_iter().map(Event::from).collect();
    // Later events may belong to other keys: then the next page is empty.
    let is_full = events.len() as u64 == limit;
    let next = events.last().filter(|event| is_full && event.id < last).map(|event| event.id);
    answer::ok(&EventList { events, next, oldest })
}

/// A stream of events.
struct EventStream {
    _slot: LongLivedSlot,
    app: App,
    caller: Caller,
    of: EventFilter,
    /// The last one that was read.
    after: u64,
    looks_back: bool,
    /// The last deleted event that it said is missing.
    told: u64,
    /// The client chose where it begins, and that is not checked yet.
    resumed: bool,
    watch: EventWatch,
    /// Transitions before this event are skipped.
    since: u64,
    /// The place of the last change of a state that was looked at.
    place: u64,
    states: TransitionWatch,
    /// When it last looked for transitions.
    looked_at: Instant,
    /// How many events that look found.
    read_last: u32,
    /// When it last sent something. Events of other keys must not delay its heartbeat.
    said_at: Instant,
    /// The history was read.
    begun: bool,
    key: KeyWatch,
    /// What was read and not sent, as one piece: hundreds of small ones would cost more to send than
    /// to read.
    ready: Vec<u8>,
    over: bool,
}

impl EventStream {
    /// Reads new events; false if there are none.
    async fn read(&mut self) -> Result<bool, Refused> {
        // Transitions first: events before them are then found in the history.
        let EventFilter { sandbox, session } = self.of;
        let limit = STREAM_PAGE as usize;
        let query =
            TransitionQuery { place: self.place, after: self.since, sandbox, session, limit };
        let mut states = self.app.engine.recent_transitions(self.caller, &query);
        self.looked_at = Instant::now();
        self.read_last = 0;
        if !self.begun || self.watch.last() > self.after {
            return self.read_history(states).await;
        }
        self.tell_states(&mut states, u64::MAX);
        self.place = states.place;
        Ok(!self.ready.is_empty())
    }

    /// Reads the next part of the history, and inserts transitions where they happened.
    async fn read_history(&mut self, mut states: TransitionPage) -> Result<bool, Refused> {
        let query = self.of.query(self.after, STREAM_PAGE);
        let page = self.app.engine.events(self.caller, query).await?;
        self.begun = true;
        // Numbers above the last one belong to another history, which is gone.
        let is_of_another = mem::take(&mut self.resumed) && self.after > page.last;
        // What it said once it does not say again: older events of other keys may still come.
        let missed = page.missed_events_since(self.after) && page.deleted > self.told;
        if is_of_another || self.looks_back && missed {
            let reset = EventsReset { oldest: page.oldest };
            let before = page.oldest.saturating_sub(1);
            self.after = if is_of_another { before } else { self.after.max(before) };
            let id = Some(self.after);
            Format::Sse.add_event(&mut self.ready, id, EventsReset::NAME, &reset);
            self.told = page.deleted;
            self.since = self.after;
        }
        if is_of_another {
            return Ok(true);
        }
        self.looks_back = true;
        // Transitions that were left out come before the events after this one.
        let cut_after = states.cut_after().unwrap_or(u64::MAX);
        let is_last_page = page.events.len() < STREAM_PAGE as usize;
        let is_cut = page.events.last().is_some_and(|last| last.number > cut_after);
        for stored in page.events.into_iter().take_while(|stored| stored.number <= cut_after) {
            self.tell_states(&mut states, stored.number);
            self.after = stored.number;
            self.push(stored);
        }
        if is_last_page || is_cut {
            self.tell_states(&mut states, u64::MAX);
            self.place = states.place;
        }
        if is_last_page && states.is_all {
            // The rest belongs to other keys.
            self.after = self.after.max(page.last);
        }
        Ok(!self.ready.is_empty())
    }

    /// Sends the transitions that happened before an event.
    fn tell_states(&mut self, states: &mut TransitionPage, before: u64) {
        while let Some((place, stored)) = states.changes.pop_front_if(|(_, s)| s.number < before) {
            self.place = place;
            // One whose decision was written with later ones comes after the events of those:
            // numbers never go back, so that a client that comes again misses nothing.
            self.push(StoredEvent { number: stored.number.max(self.after), ..stored });
        }
    }

    fn push(&mut self, stored: StoredEvent) {
        self.read_last += 1;
        let event = Event::from(stored);
        let name = event.body.name();
        Format::Sse.add_event(&mut self.ready, Some(event.id), name, &event);
    }

    /// The time from the last look to the next.
    fn pause(&self) -> Duration {
        let streams = self.app.long_lived.count(self.caller.key);
        let second = Duration::from_secs(1);
        streams * (second / LOOKS_PER_S + self.read_last * second / EVENTS_PER_S)
    }

    /// Waits for more; none if the stream has ended.
    async fn wait(&mut self) -> Option<Waited> {
        let mut stopping = self.app.stopping.clone();
        let (looked_at, pause) = (self.looked_at, self.pause());
        let events = async {
            sleep_until(looked_at + pause).await;
            self.watch.wait_past(self.after).await
        };
        let states = async {
            sleep_until(looked_at + STATES_EVERY.max(pause)).await;
            self.states.wait_past(self.place).await
        };
        tokio::select! {
            more = events => more.then_some(Waited::More),
            more = states => more.then_some(Waited::More),
            () = sleep_until(self.said_at + HEARTBEAT) => Some(Waited::Quiet),
            _ = stopping.wait_for(|stopping| *stopping) => None,
            () = self.key.ended(&self.app) => None,
        }
    }
}

enum Waited {
    More,
    Quiet,
}

impl BodySource for EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.ready.is_empty() {
                self.said_at = Instant::now();
                return Some(mem::take(&mut self.ready).into());
            }
            if self.over || !self.key.works(&self.app) {
                return None;
            }
            let is_due = !self.begun || self.looked_at.elapsed() >= self.pause();
            match if is_due { self.read().await } else { Ok(false) } {
                Ok(true) => continue,
                Ok(false) => {}
                // The client reconnects with the last number it read.
                Err(refused) => {
                    tracing::warn!(cause = %refused.refusal, "a stream of events failed");
                    return None;
                }
            }
            match self.wait().await {
                None => self.over = true,
                Some(Waited::More) => {}
                Some(Waited::Quiet) => {
                    self.said_at = Instant::now();
                    return Format::Sse.heartbeat();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use model::template::RuntimeKind;
    use model::{Role, Template, TemplateName};
    use runtime::fake::{FakeRuntime, FakeSettings};
    use tokio::time::sleep;

    use super::*;

    async fn stream(app: &App, caller: Caller) -> Body {
        let answered = stream_or_page(
            app,
            caller,
            Query::default(),
            &HeaderMap::new(),
            EventFilter::default(),
        )
        .await;
        answered.unwrap_or_else(|refused| panic!("{refused:?}")).into_body()
    }

    #[tokio::test(start_paused = true)]
    async fn event_stream_sends_heartbeats_until_its_key_is_revoked() {
        let store = store::memory::MemoryStore::new(store::Retention::default());
        let (config, runtimes) = (engine::EngineConfig::default(), engine::Runtimes::new());
        let started = engine::Engine::start(config, Arc::new(store), runtimes).await.unwrap();
        let (stop, stopping) = tokio::sync::watch::channel(false);
        let settings = web::settings::Settings::default();
        let app = App::new(started.engine, settings, Bytes::new(), Vec::new(), stopping);
        let key = app.engine.create_key("k", Role::Read, None).await.unwrap().record;
        let caller = Caller { key: key.id, role: key.role };
        let mut quiet = stream(&app, caller).await;
        let began = Instant::now();
        for n in 1..=3 {
            let beat = quiet.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(beat.starts_with(b":"), "{beat:?}");
            assert_eq!(began.elapsed().as_secs(), 15 * n);
        }
        let (engine, id) = (app.engine.clone(), key.id);
        let revoking = tokio::spawn(async move {
            sleep(Duration::from_secs(1)).await;
            engine.revoke_key(id).await.unwrap();
        });
        let began = Instant::now();
        assert!(quiet.frame().await.is_none(), "no heartbeat comes after it");
        assert!(began.elapsed() < Duration::from_millis(1500), "at once: {:?}", began.elapsed());
        revoking.await.unwrap();
        let other = app.engine.create_key("k", Role::Read, None).await.unwrap().record;
        let mut stopped = stream(&app, Caller { key: other.id, role: other.role }).await;
        stop.send_replace(true);
        assert!(stopped.frame().await.is_none());
    }

    /// An app whose sandboxes are fake, and its template.
    async fn with_sandboxes(stopping: tokio::sync::watch::Receiver<bool>) -> (App, TemplateName) {
        let name = TemplateName::new("default").unwrap();
        let template = Template { runtime: RuntimeKind::Fake, ..Template::named(name.clone()) };
        let fake = Arc::new(FakeRuntime::new(FakeSettings::default()));
        let runtimes = engine::Runtimes::new().with(RuntimeKind::Fake, fake);
        let config =
            engine::EngineConfig { templates: vec![template], ..engine::EngineConfig::default() };
        let store = store::memory::MemoryStore::new(store::Retention::default());
        let started = engine::Engine::start(config, Arc::new(store), runtimes).await.unwrap();
        let settings = web::settings::Settings::default();
        (App::new(started.engine, settings, Bytes::new(), Vec::new(), stopping), name)
    }

    async fn caller(app: &App, role: Role) -> Caller {
        let key = app.engine.create_key("k", role, None).await.unwrap().record;
        Caller { key: key.id, role: key.role }
    }

    #[tokio::test(start_paused = true)]
    async fn events_come_later_to_a_key_with_many_streams_and_to_no_other() {
        let (_stop, stopping) = tokio::sync::watch::channel(false);
        let (app, name) = with_sandboxes(stopping).await;
        let (eve, ada) = (caller(&app, Role::Use).await, caller(&app, Role::Use).await);
        let begin =
            || app.long_lived.begin(eve.key).unwrap_or_else(|refused| panic!("{refused:?}"));
        let _held: Vec<_> = (0..500).map(|_| begin()).collect();
        for (caller, waits_ms) in [(eve, 400..700), (ada, 0..50)] {
            let mut events = stream(&app, caller).await;
            let mut leases = Vec::new();
            let mut came = Vec::new();
            for _ in 0..2 {
                let asked = engine::CheckoutRequest::of(name.clone());
                leases.push(app.engine.checkout(caller, asked).await.unwrap());
                loop {
                    let frame = events.frame().await.unwrap().unwrap().into_data().unwrap();
                    if frame.windows(14).any(|part| part == b"sandbox_active") {
                        break;
                    }
                }
                came.push(Instant::now());
            }
            let waited_ms = came[1].duration_since(came[0]).as_millis();
            assert!(waits_ms.contains(&waited_ms), "{waited_ms}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_and_transitions_of_many_pages_come_in_order_and_each_once() {
        let (_stop, stopping) = tokio::sync::watch::channel(false);
        let (app, name) = with_sandboxes(stopping).await;
        let ada = caller(&app, Role::Use).await;
        for _ in 0..100 {
            let asked = engine::CheckoutRequest::of(name.clone());
            drop(app.engine.checkout(ada, asked).await.unwrap());
            sleep(Duration::from_millis(50)).await;
        }
        let query = EventFilter::default().query(0, 1000);
        let stored = app.engine.events(ada, query).await.unwrap().events.len();
        let all =
            TransitionQuery { place: 0, after: 0, sandbox: None, session: None, limit: usize::MAX };
        let states = app.engine.recent_transitions(ada, &all).changes.len();
        let page = STREAM_PAGE as usize;
        assert!(stored > 3 * page && states > page, "{stored} {states}");
        let from_the_first = HeaderMap::from_iter([(
            http::HeaderName::from_static(LAST_EVENT_ID),
            http::HeaderValue::from_static("0"),
        )]);
        let answered =
            stream_or_page(&app, ada, Query::default(), &from_the_first, EventFilter::default());
        let mut events = answered.await.unwrap_or_else(|refused| panic!("{refused:?}")).into_body();
        let (mut ids, mut seen) = (Vec::new(), 0);
        while ids.len() + seen < stored + states {
            let frame = events.frame().await.unwrap().unwrap().into_data().unwrap();
            for event in std::str::from_utf8(&frame).unwrap().split_terminator("\n\n") {
                let (id, rest) = event.split_once('\n').unwrap();
                let id: u64 = id.strip_prefix("id: ").unwrap().parse().unwrap();
                assert!(ids.last().is_none_or(|last| *last <= id), "{event}");
                if rest.starts_with("event: sandbox_state\n") {
                    seen += 1;
                } else {
                    ids.push(id);
                }
            }
        }
        ids.dedup();
        assert_eq!((ids.len(), seen), (stored, states));
    }

    #[tokio::test(start_paused = true)]
    async fn event_stream_sends_heartbeats_while_other_keys_are_busy() {
        let (_stop, stopping) = tokio::sync::watch::channel(false);
        let (app, name) = with_sandboxes(stopping).await;
        let (reader, busy) = (caller(&app, Role::Read).await, caller(&app, Role::Use).await);
        let others = tokio::spawn({
            let (engine, name) = (app.engine.clone(), name.clone());
            async move {
                loop {
                    let asked = engine::CheckoutRequest::of(name.clone());
                    drop(engine.checkout(busy, asked).await.unwrap());
                    sleep(Duration::from_millis(500)).await;
                }
            }
        });
        let mut quiet = stream(&app, reader).await;
        let began = Instant::now();
        for n in 1..=3 {
            let beat = quiet.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(beat.starts_with(b":"), "{beat:?}");
            assert_eq!(began.elapsed().as_secs(), 15 * n);
        }
        let moves: u64 = app.engine.transition_counts().iter().map(|(_, _, often)| often).sum();
        assert!(moves > 50, "the server was busy: {moves}");
        others.abort();
    }
}
