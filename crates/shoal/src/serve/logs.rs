//! Logging: to stderr, as text or as JSON.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Log, LogFormat, LogLevel};
use crate::failure::Failure;

/// Libraries whose warnings and errors are logged, and nothing else.
const OTHERS: [&str; 4] = ["hyper", "hyper_util", "h2", "tower"];
/// A library that logs contents of messages, which may be secret. Clients receive its errors.
const SILENT: &str = "rmcp";

pub(super) fn start(log: Log) -> Result<(), Failure> {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let others = OTHERS.map(|name| (name, level.min(LevelFilter::WARN)));
    let filter = Targets::new()
        .with_default(level)
        .with_targets(others)
        .with_target(SILENT, LevelFilter::OFF);
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && !plain);
    let lines = match log.format {
        LogFormat::Text => lines.with_target(false).with_filter(filter).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_filter(filter).boxed(),
    };
    let started = tracing_subscriber::registry().with(lines).try_init();
    started.map_err(|error| Failure::new("cannot write logs", error))
}
