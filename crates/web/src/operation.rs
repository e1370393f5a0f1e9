//! A route and its description. The router and the OpenAPI document are made from the same
//! list, so that no route can be without its description.

use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use model::ErrorCode;

use crate::app::App;
use crate::front::Needs;

/// One method of one path.
pub struct Route {
    /// Its method.
    pub method: Verb,
    /// Its path, with names in place of ids.
    pub path: &'static str,
    /// Other spellings of the path, which need no description of their own.
    pub also: &'static [&'static str],
    /// The role that it requires.
    pub needs: Needs,
    /// Its description.
    pub operation: Operation,
    /// Its handler.
    pub handler: MethodRouter<App>,
}

impl Route {
    /// A route without other spellings.
    pub fn new<H, T>(
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
            None => on(proxied_methods(), handler),
        };
        Self { method, path, also: &[], needs, operation, handler }
    }

    /// Adds other spellings of the path.
    #[must_use]
    pub fn also(mut self, paths: &'static [&'static str]) -> Self {
        self.also = paths;
        self
    }
}

/// The methods that are proxied to servers inside. Not `TRACE`: it would echo headers that only
/// this server may see.
const fn proxied_methods() -> MethodFilter {
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
pub enum Verb {
    /// `GET`.
    Get,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
    /// `PATCH`.
    Patch,
    /// `DELETE`.
    Delete,
    /// Any method.
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

/// The description of a route.
pub struct Operation {
    /// A name for generated clients.
    pub id: &'static str,
    /// Its description, in a sentence.
    pub about: &'static str,
    /// The body that it takes.
    pub takes: Takes,
    /// The parameters of its query.
    pub query: Vec<Param>,
    /// The headers that it reads.
    pub headers: Vec<Param>,
    /// Its successful answers.
    pub answers: Vec<Answers>,
    /// Error codes, besides those of every route.
    pub refuses: Vec<ErrorCode>,
}

impl Operation {
    /// A route that takes nothing and refuses nothing of its own.
    pub fn new(id: &'static str, about: &'static str) -> Self {
        let (query, headers, answers, refuses) = (vec![], vec![], vec![], vec![]);
        Self { id, about, takes: Takes::Nothing, query, headers, answers, refuses }
    }

    /// Sets the body that it takes.
    #[must_use]
    pub fn takes(mut self, takes: Takes) -> Self {
        self.takes = takes;
        self
    }

    /// Adds parameters of the query.
    #[must_use]
    pub fn query(mut self, query: impl IntoIterator<Item = Param>) -> Self {
        self.query.extend(query);
        self
    }

    /// Adds headers.
    #[must_use]
    pub fn headers(mut self, headers: impl IntoIterator<Item = Param>) -> Self {
        self.headers.extend(headers);
        self
    }

    /// Adds a successful answer.
    #[must_use]
    pub fn answers(
        mut self,
        status: u16,
        about: &'static str,
        content: impl Into<Vec<Content>>,
    ) -> Self {
        self.answers.push(Answers { status, about, content: content.into() });
        self
    }

    /// Adds codes that it may refuse with.
    #[must_use]
    pub fn refuses(mut self, codes: &[ErrorCode]) -> Self {
        self.refuses.extend(codes);
        self
    }
}

/// The body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// No body.
    Nothing,
    /// JSON of this schema.
    Json(&'static str),
    /// JSON of this schema, or nothing.
    OptionalJson(&'static str),
    /// Bytes of these media types.
    Bytes(&'static [&'static str]),
}

/// A parameter of the query, or a header.
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// Its description.
    pub about: &'static str,
    /// Its values.
    pub kind: Kind,
    /// Whether it must be given.
    pub required: bool,
}

impl Param {
    /// One that may be left out.
    pub const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, about, kind, required: false }
    }

    /// The same, but it must be given.
    #[must_use]
    pub const fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// The values of a parameter.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Any text.
    Text,
    /// Text of this pattern.
    Matching(&'static str),
    /// A word that has a schema of its own.
    Schema(&'static str),
    /// An id.
    Uuid,
    /// Bytes as base64.
    Base64,
    /// `true` or `false`.
    Flag,
    /// From the first to the second.
    Number(u64, u64),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Text of this pattern that may be given more than once.
    Repeated(&'static str),
}

/// One successful answer.
pub struct Answers {
    /// Its status.
    pub status: u16,
    /// Its description.
    pub about: &'static str,
    /// Its bodies.
    pub content: Vec<Content>,
}

/// The body of an answer: its media type, and its schema if it has one.
#[derive(Debug, Clone, Copy)]
pub struct Content(pub &'static str, pub Option<&'static str>);

/// JSON of a schema.
pub const fn json(schema: &'static str) -> Content {
    Content("application/json", Some(schema))
}
