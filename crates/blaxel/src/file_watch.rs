//! A stream of file changes, one JSON text per line. The headers of the answer are sent when the
//! watch is active, so a client that has them misses nothing.

use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use engine::{ChangeKind, EntryKind, FileChange, FileWatch, Use, UseKind, WatchQuery};
use http::header::CONTENT_TYPE;
use serde_json::json;
use tokio::time::sleep;

use super::errors::BlaxelError;
use super::files::kind_of;
use super::log_stream::{KEEPALIVE, STILL_HERE, TEXT};
use super::paths::FilePath;
use super::request_body;
use super::target::Target;
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;
use web::stream::{BodySource, body};

struct WatchStream {
    target: Target,
    watch: FileWatch,
    ignore: Vec<String>,
    key: KeyWatch,
    over: bool,
    _slot: LongLivedSlot,
    /// Last: the watch is a use of the sandbox.
    used: Use,
}

pub(super) async fn response(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    let (mut query, _) = request_body::query(request).await?;
    let ignore = request_body::list(&mut query, "ignore")?;
    let without = path.without_end("/**");
    let recursive = without.is_some();
    let path = without.map_or_else(|| path.clone(), |whole| FilePath::from_root(&whole));
    let slot = target.app.long_lived.begin(target.key)?;
    let used = target.begin(UseKind::Stream).await?;
    if kind_of(&used, &path).await? != EntryKind::Directory {
        return Err(BlaxelError::bad(format!("{} is not a directory", path.shown)));
    }
    let watch = used.watch(&WatchQuery { path: path.whole, recursive }).await?;
    let watching = WatchStream {
        target: target.clone(),
        watch,
        ignore,
        key: KeyWatch::new(target.key),
        over: false,
        _slot: slot,
        used,
    };
    let mut response = Response::new(body(watching));
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    Ok(response)
}

/// The name of a change in Blaxel.
const fn word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Created => "CREATE",
        ChangeKind::Written => "WRITE",
        ChangeKind::Removed => "REMOVE",
        ChangeKind::Renamed => "RENAME",
        ChangeKind::About => "CHMOD",
        ChangeKind::Lost => "",
    }
}

/// The name that a file which is being written has until it is whole.
fn is_unfinished(name: &str) -> bool {
    name.starts_with(".shoal-") && name.strip_suffix(".part").is_some()
}

fn line(change: &FileChange, ignore: &[String]) -> Option<Bytes> {
    let whole = String::from_utf8_lossy(&change.path);
    let (directory, name) = whole.rsplit_once('/').unwrap_or(("", &whole));
    if is_unfinished(name) || ignore.iter().any(|part| whole.contains(part.as_str())) {
        return None;
    }
    let directory = if directory.is_empty() { "/" } else { directory };
    let lost = change.kind == ChangeKind::Lost;
    let error = lost.then_some("changes came faster than they were read: some are missing");
    let mut text =
        json!({"op": word(change.kind), "name": name, "path": directory, "error": error})
            .to_string();
    text.push('\n');
    Some(text.into())
}

impl BodySource for WatchStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over || !self.key.works(&self.target.app) {
                return None;
            }
            let change = tokio::select! {
                biased;
                change = self.used.next_change(&mut self.watch) => change,
                () = self.target.server_stops() => return None,
                () = sleep(KEEPALIVE) => return Some(Bytes::from_static(STILL_HERE)),
            };
            match change {
                Ok(Some(change)) => {
                    if let Some(line) = line(&change, &self.ignore) {
                        return Some(line);
                    }
                }
                Ok(None) => return None,
                Err(refusal) => {
                    self.over = true;
                    let text = json!({"op": "", "name": "", "path": "", "error": refusal.cause});
                    return Some(format!("{text}\n").into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(kind: ChangeKind, path: &str, ignore: &[&str]) -> Option<String> {
        let change = FileChange { kind, path: path.as_bytes().to_vec(), is_directory: false };
        let ignore: Vec<_> = ignore.iter().map(|part| (*part).to_owned()).collect();
        line(&change, &ignore).map(|line| String::from_utf8(line.to_vec()).unwrap())
    }

    #[test]
    fn file_change_is_one_line() {
        let line = "{\"error\":null,\"name\":\"b\",\"op\":\"WRITE\",\"path\":\"/a\"}\n";
        assert_eq!(line_of(ChangeKind::Written, "/a/b", &[]).as_deref(), Some(line));
        let line = "{\"error\":null,\"name\":\"b\",\"op\":\"REMOVE\",\"path\":\"/\"}\n";
        assert_eq!(line_of(ChangeKind::Removed, "/b", &[]).as_deref(), Some(line));
        assert_eq!(line_of(ChangeKind::Created, "/a/node_modules/x", &["node_modules"]), None);
        assert_eq!(line_of(ChangeKind::Created, "/a/.shoal-7-9.part", &[]), None);
        assert!(line_of(ChangeKind::Lost, "/a", &[]).unwrap().contains("some are missing"));
    }
}
