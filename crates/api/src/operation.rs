//! A route and what is told about it. The router and the OpenAPI document are made from the same
//! list, so that no route can be without its description.

use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use model::ErrorCode;

use crate::app::App;
use crate::front::Needs;

/// One method of one path.
pub(crate) struct Route {
    pub(crate) method: Verb,
    pub(crate) path: &'static str,
    /// Other spellings of the path, which need no description of their own.
    pub(crate) also: &'static [&'static str],
    pub(crate) needs: Needs,
    pub(crate) operation: Operation,
    pub(crate) handler: MethodRouter<App>,
}

impl Route {
    pub(crate) fn new<H, T>(
        method: Verb,
        path: &'static str,
        needs: Needs,
        handler: H,
        operation: Operation,
    ) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        let handler = match method.filter() {
            Some(filter) => on(filter, handler),
            None => on(passed_on(), handler),
        };
        Self { method, path, also: &[], needs, operation, handler }
    }

    pub(crate) fn also(mut self, paths: &'static [&'static str]) -> Self {
        self.also = paths;
        self
    }
}

/// What is passed on to servers inside: everything that a client may mean for them. `TRACE` would
/// send back what only we are told.
const fn passed_on() -> MethodFilter {
    MethodFilter::GET
        .or(MethodFilter::HEAD)
        .or(MethodFilter::POST)
        .or(MethodFilter::PUT)
        .or(MethodFilter::PATCH)
        .or(MethodFilter::DELETE)
        .or(MethodFilter::OPTIONS)
}

/// The methods that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
    /// Whatever there is.
    Any,
}

impl Verb {
    const fn filter(self) -> Option<MethodFilter> {
        Some(match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
            Self::Any => return None,
        })
    }
}

/// What is told about a route.
pub(crate) struct Operation {
    /// A name for generated clients.
    pub(crate) id: &'static str,
    /// What it does, in a sentence.
    pub(crate) about: &'static str,
    pub(crate) takes: Takes,
    pub(crate) query: Vec<Param>,
    pub(crate) headers: Vec<Param>,
    pub(crate) answers: Vec<Answers>,
    /// Besides those that every route has.
    pub(crate) refuses: Vec<ErrorCode>,
}

impl Operation {
    /// A route that takes nothing and refuses nothing of its own.
    pub(crate) fn new(id: &'static str, about: &'static str) -> Self {
        let (query, headers, answers, refuses) = (vec![], vec![], vec![], vec![]);
        Self { id, about, takes: Takes::Nothing, query, headers, answers, refuses }
    }

    pub(crate) fn takes(mut self, takes: Takes) -> Self {
        self.takes = takes;
        self
    }

    pub(crate) fn query(mut self, query: impl IntoIterator<Item = Param>) -> Self {
        self.query.extend(query);
        self
    }

    pub(crate) fn headers(mut self, headers: impl IntoIterator<Item = Param>) -> Self {
        self.headers.extend(headers);
        self
    }

    pub(crate) fn answers(
        mut self,
        status: u16,
        about: &'static str,
        content: impl Into<Vec<Content>>,
    ) -> Self {
        self.answers.push(Answers { status, about, content: content.into() });
        self
    }

    pub(crate) fn refuses(mut self, codes: &[ErrorCode]) -> Self {
        self.refuses.extend(codes);
        self
    }
}

/// The body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    /// JSON of this schema.
    Json(&'static str),
    /// JSON of this schema, or nothing.
    OptionalJson(&'static str),
    /// Bytes of these media types.
    Bytes(&'static [&'static str]),
}

/// A parameter of the query, or a header.
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
}

impl Param {
    pub(crate) const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, about, kind, required: false }
    }

    pub(crate) const fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// The values of a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Text,
    /// Text of this pattern.
    Matching(&'static str),
    /// A word that has a schema of its own.
    Schema(&'static str),
    Uuid,
    Base64,
    Flag,
    /// From the first to the second.
    Number(u64, u64),
    OneOf(&'static [&'static str]),
    /// Text of this pattern that may be given more than once.
    Repeated(&'static str),
}

/// One successful answer.
pub(crate) struct Answers {
    pub(crate) status: u16,
    pub(crate) about: &'static str,
    pub(crate) content: Vec<Content>,
}

/// The body of an answer: its media type, and its schema if it has one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content(pub(crate) &'static str, pub(crate) Option<&'static str>);

/// JSON of a schema.
pub(crate) const fn json(schema: &'static str) -> Content {
    Content("application/json", Some(schema))
}
