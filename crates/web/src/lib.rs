//! The HTTP server that our own routes and all dialects share: it checks keys, hosts, sizes, rates
//! and timeouts, and logs and counts requests. It must decide nothing about sandboxes, and knows
//! neither vendors nor stores nor runtimes.

pub mod account;
pub mod answer;
mod answer_memory;
pub mod app;
pub mod archive;
pub mod body;
pub mod body_memory;
pub mod body_reader;
pub mod contents;
pub mod cors;
pub mod dialect;
mod egress_metrics;
pub mod exec_exit;
pub mod front;
pub mod handed_out;
pub mod hosts;
pub mod idempotency;
pub mod input_checks;
pub mod key_limits;
pub mod key_metrics;
pub mod key_watch;
pub mod long_lived;
pub mod metrics;
mod named_in_path;
pub mod octal;
#[cfg(feature = "schema")]
pub mod openapi;
pub mod operation;
pub mod path;
pub mod port;
pub mod process_wait;
pub mod proxy;
pub mod proxy_exchange;
pub mod query;
pub mod range;
pub mod rate;
pub mod refused;
pub mod request_id;
pub mod request_log;
mod secret_metrics;
pub mod serve;
pub mod settings;
pub mod state_loss;
pub mod stream;
pub mod subprotocol;
pub mod tunnel;
mod usage_metrics;
pub mod use_target;
pub mod utf8_chunks;
pub mod ws_keepalive;

// A future that is not boxed is compiled in every crate that awaits it, with everything beneath it.
// Public functions that are not in the way of a checkout or an exec are boxed, so that they are
// compiled here, once.
use async_recursion::async_recursion as boxed;
