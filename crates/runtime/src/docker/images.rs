//! Finds the image of a container. An image that the engine has is used as it is; otherwise it
//! comes from our image store, and otherwise the engine pulls it. One fetch serves all waiting
//! launches, in a task of its own: a launch that gives up does not end it, and a failed fetch is
//! not retried at once.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::models::ImageInspect;
use bollard::query_parameters::{CreateImageOptionsBuilder, ImportImageOptionsBuilder};
use futures_util::{TryStreamExt as _, stream};
use model::ImageId;
use tokio::sync::{OnceCell, Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::config::StoredImages;
use super::container_config::BindMount;
use super::engine::{Engine, EngineFailure, QUICK};
use super::host_root::HostRoot;
use super::single_flight::SingleFlight;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::Root;

const STEP: &str = "find the image";

/// How long fetching an image may take in all.
const FETCH_PATIENCE: Duration = Duration::from_mins(30);
/// How long the engine may be silent while an image is fetched.
const SILENCE_PATIENCE: Duration = Duration::from_mins(2);
/// How long a failed fetch is not retried.
const FAILURE_COUNTS: Duration = Duration::from_secs(10);
/// The longest name of an image.
const NAME_BYTES_MAX: usize = 255;
/// How many images are fetched at once.
const AT_ONCE: usize = 4;
/// How much of an image is on its way from the store to the engine at once.
const PIECE_BYTES: usize = 256 * 1024;
const PIECES: usize = 4;

/// An image that the engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    /// Its id.
    pub id: String,
    /// Where it wants volumes.
    pub volumes: Vec<String>,
    /// Host directories that are mounted with it.
    pub shown: Vec<BindMount>,
}

/// How an image is brought to the engine.
#[derive(Clone)]
enum Source {
    /// The engine pulls it by its name.
    Pull,
    /// Our store has it.
    Store(ImageId, Arc<dyn StoredImages>),
    /// It is made from files of this host.
    Host(Arc<HostRoot>),
}

/// The images of one engine.
pub(super) struct Images {
    engine: Arc<Engine>,
    store: Option<Arc<dyn StoredImages>>,
    fetches: SingleFlight<(), String>,
    /// Limits how many are fetched at once.
    turns: Arc<Semaphore>,
    host: OnceCell<Arc<HostRoot>>,
    /// The id of each name when it was last looked up.
    known: Mutex<BTreeMap<String, String>>,
}

impl Images {
    pub(super) fn new(engine: Arc<Engine>, store: Option<Arc<dyn StoredImages>>) -> Self {
        Self {
            engine,
            store,
            fetches: SingleFlight::new(FAILURE_COUNTS),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            host: OnceCell::new(),
            known: Mutex::default(),
        }
    }

    /// The image for a root. Fetched if the engine does not have it, within `patience`.
    pub(super) async fn find(
        &self,
        root: &Root,
        patience: Duration,
    ) -> Result<Image, RuntimeError> {
        match root {
            Root::Named { name, stored } => {
                let image = match (self.inspect(name).await?, stored, &self.store) {
                    (Some(image), _, _) => image,
                    (None, Some(id), Some(_)) => self.stored(*id, patience).await?,
                    (None, Some(_), None) => return stored_nowhere(name),
                    (None, None, _) => self.fetched(name, Source::Pull, patience).await?,
                };
                self.note(name, &image);
                Ok(image)
            }
            Root::Image(id) => self.stored(*id, patience).await,
            Root::Host => {
                let host = self.host.get_or_try_init(build_host_root).await?;
                let image = match self.inspect(&host.name()).await? {
                    Some(image) => image,
                    None => {
                        self.fetched(&host.name(), Source::Host(Arc::clone(host)), patience).await?
                    }
                };
                Ok(Image { shown: host.shown.clone(), ..image })
            }
            Root::Directory(_) => {
                let cause = "the root cannot be a directory; import the directory as an image";
                Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause))
            }
        }
    }

    async fn stored(&self, id: ImageId, patience: Duration) -> Result<Image, RuntimeError> {
        let tag = stored_tag(id);
        if let Some(image) = self.inspect(&tag).await? {
            return Ok(image);
        }
        let Some(store) = &self.store else {
            let cause = "this server has no image store";
            return Err(RuntimeError::new(RuntimeErrorCode::RootUnknown, STEP, cause));
        };
        self.fetched(&tag, Source::Store(id, Arc::clone(store)), patience).await
    }

    /// The engine's image of this name.
    async fn inspect(&self, name: &str) -> Result<Option<Image>, RuntimeError> {
        if !is_reference(name) {
            let cause = format!("{name:?} is not a valid image name");
            return Err(RuntimeError::new(RuntimeErrorCode::Invalid, STEP, cause));
        }
        let asked =
            self.engine.ask(QUICK, |docker| async move { docker.inspect_image(name).await }).await;
        match asked {
            Ok(found) if is_called(&found, name) => Ok(image_of(found)),
            Ok(_) => Ok(None),
            Err(failure) if failure.is_missing() => Ok(None),
            Err(failure) => Err(self.engine.failed(RuntimeErrorCode::LaunchFailed, STEP, &failure)),
        }
    }

    /// Logs if a name stands for another image than before: new sandboxes then differ from warm
    /// ones.
    fn note(&self, name: &str, image: &Image) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.insert(name.to_owned(), image.id.clone());
        if let Some(before) = before.filter(|before| *before != image.id) {
            tracing::warn!(
                image = name,
                before,
                now = image.id,
                "the image name points to another image now; new sandboxes use it"
            );
        }
    }

    /// Fetches an image, or joins a fetch in progress.
    async fn fetched(
        &self,
        name: &str,
        source: Source,
        patience: Duration,
    ) -> Result<Image, RuntimeError> {
        let failed = |cause: String| RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause);
        let how = source.in_words(name);
        let (engine, turns, wanted) =
            (Arc::clone(&self.engine), Arc::clone(&self.turns), name.to_owned());
        let fetch = self.fetches.join(name, || async move {
            let bringing = async {
                // It is never closed.
                let _turn = turns.acquire().await;
                source.bring(&engine, &wanted).await
            };
            let brought = timeout(FETCH_PATIENCE, bringing).await;
            brought
                .unwrap_or_else(|_| Err(EngineFailure::Unanswered("no end in time".into())))
                .map_err(|failure| source.failed(&wanted, &failure))
        });
        match timeout(patience, fetch.result()).await {
            Ok(Some(Ok(()))) => {}
            Ok(Some(Err(cause))) => return Err(failed(cause)),
            Ok(None) => return Err(failed(format!("the fetch of the image {name} panicked"))),
            Err(_) => return Err(failed(how)),
        }
        let image = self.inspect(name).await?;
        image.ok_or_else(|| {
            failed(format!("the engine has no image {name} although it was fetched"))
        })
    }
}

/// An image of the store is never pulled instead: a registry may have another one of the same name.
fn stored_nowhere(name: &str) -> Result<Image, RuntimeError> {
    let cause =
        format!("{name} is in the image store, which this Docker runtime is not configured to use");
    Err(RuntimeError::new(RuntimeErrorCode::RootUnknown, STEP, cause))
}

impl Source {
    fn in_words(&self, name: &str) -> String {
        match self {
            Self::Pull => format!("the image {name} is being pulled by the engine"),
            Self::Store(..) => {
                format!("the image {name} is on its way from the store to the engine")
            }
            Self::Host(_) => format!("the image {name} of this machine is being made"),
        }
    }

    fn failed(&self, name: &str, failure: &EngineFailure) -> String {
        let why = failure.message();
        match self {
            Self::Pull => format!(
                "the engine has no image {name}, the store has none of that name, and the engine \
                 cannot pull it: {why}"
            ),
            Self::Store(..) => {
                format!("the image {name} could not be brought from the store to the engine: {why}")
            }
            Self::Host(_) => format!("the image {name} of this machine could not be made: {why}"),
        }
    }

    async fn bring(&self, engine: &Engine, name: &str) -> Result<(), EngineFailure> {
        match self {
            Self::Pull => pull(engine, name).await,
            Self::Store(id, store) => load(engine, *id, Arc::clone(store)).await,
            Self::Host(root) => import(engine, root).await,
        }
    }
}

async fn pull(engine: &Engine, name: &str) -> Result<(), EngineFailure> {
    let docker = engine.find().await?.docker;
    let options = CreateImageOptionsBuilder::new().from_image(&with_tag(name)).build();
    read_progress(docker.create_image(Some(options), None, None), no_pieces()).await
}

async fn import(engine: &Engine, root: &HostRoot) -> Result<(), EngineFailure> {
    let docker = engine.find().await?.docker;
    let options =
        CreateImageOptionsBuilder::new().from_src("-").repo(root.repository).tag(&root.tag).build();
    let body = bollard::body_full(root.archive.clone().into());
    read_progress(docker.create_image(Some(options), Some(body), None), no_pieces()).await
}

async fn load(
    engine: &Engine,
    id: ImageId,
    store: Arc<dyn StoredImages>,
) -> Result<(), EngineFailure> {
    let docker = engine.find().await?.docker;
    let (pieces, coming) = mpsc::channel(PIECES);
    let writing = tasks::spawn_blocking(move || {
        let mut to = Pieces { pieces, piece: Vec::new() };
        store.write_archive(id, &stored_tag(id), &mut to)?;
        to.flush()
    });
    let (takes, taken) = watch::channel(());
    let body = stream::unfold((coming, takes), |(mut coming, takes)| async move {
        let piece: Vec<u8> = coming.recv().await?;
        takes.send_replace(());
        Some((Ok::<_, io::Error>(piece.into()), (coming, takes)))
    });
    let options = ImportImageOptionsBuilder::new().quiet(false).build();
    let body = bollard::body_try_stream(body);
    let loaded = read_progress(docker.import_image(options, body, None), taken).await;
    // A failure to write the archive explains more than the engine's view of half an archive.
    match writing.await {
        Ok(Ok(())) => loaded,
        Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => loaded,
        Ok(Err(error)) => Err(EngineFailure::Refused { status: 500, message: error.to_string() }),
        Err(error) => Err(EngineFailure::Unanswered(error.to_string())),
    }
}

/// Reads the engine's progress to its end. A piece that the engine takes counts as progress.
async fn read_progress<T>(
    progress: impl stream::Stream<Item = Result<T, bollard::errors::Error>>,
    mut taken: watch::Receiver<()>,
) -> Result<(), EngineFailure> {
    let mut progress = std::pin::pin!(progress);
    loop {
        let next = async {
            let takes = async {
                if taken.changed().await.is_err() {
                    // All pieces are taken.
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                next = progress.try_next() => next.map(|line| line.map(drop)),
                () = takes => Ok(Some(())),
            }
        };
        match timeout(SILENCE_PATIENCE, next).await {
            Ok(Ok(Some(()))) => {}
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(EngineFailure::of(error)),
            Err(_) => {
                return Err(EngineFailure::Unanswered(
                    "the engine made no progress for minutes".into(),
                ));
            }
        }
    }
}

/// For requests that are not sent in pieces.
fn no_pieces() -> watch::Receiver<()> {
    watch::channel(()).1
}

/// Passes on written bytes, in pieces, to the task that sends them.
struct Pieces {
    pieces: mpsc::Sender<Vec<u8>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece);
        self.pieces.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

async fn build_host_root() -> Result<Arc<HostRoot>, RuntimeError> {
    let built = tasks::spawn_blocking(HostRoot::build).await;
    built
        .map_err(io::Error::other)
        .flatten()
        .map(Arc::new)
        .map_err(|error| RuntimeError::system("make an image of this machine", &error))
}

fn image_of(found: ImageInspect) -> Option<Image> {
    let volumes = found.config.and_then(|config| config.volumes).unwrap_or_default();
    Some(Image { id: found.id?, volumes, shown: Vec::new() })
}

/// Whether an image has this name. An engine accepts the beginning of an id as a name, too, and
/// that would match images by chance.
fn is_called(found: &ImageInspect, name: &str) -> bool {
    let may_be_an_id = name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let tags = found.repo_tags.iter().flatten();
    !may_be_an_id || tags.into_iter().any(|tag| tag.split(':').next() == Some(name))
}

/// Whether this is a valid image name. It becomes part of a request URL, so nothing else may pass.
fn is_reference(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:@-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(fine)
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// The name of a stored image at the engine.
fn stored_tag(id: ImageId) -> String {
    format!("shoal/image:{id}")
}

/// A name of exactly one image: without a tag an engine would pull all tags.
fn with_tag(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') || name.contains('@') {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_image_names_become_part_of_a_request() {
        for (name, expected) in [
            ("debian", true),
            ("debian:12-slim", true),
            ("registry:5000/team/tool@sha256:abc", true),
            ("shoal/image:0a", true),
            ("a..b", true),
            ("", false),
            ("get?names=huge", false),
            ("../containers/x/export", false),
            ("a/../b", false),
            ("a//b", false),
            ("/a", false),
            ("a b", false),
            ("a%2e", false),
            ("a#b", false),
            (&"x".repeat(256), false),
        ] {
            assert_eq!(is_reference(name), expected, "{name:?}");
        }
    }

    #[test]
    fn image_id_prefix_is_no_image_name() {
        let found = |tags: &[&str]| ImageInspect {
            repo_tags: Some(tags.iter().map(|tag| (*tag).to_owned()).collect()),
            ..ImageInspect::default()
        };
        for (tags, name, expected) in [
            (&["debian:12"][..], "debian:12", true),
            (&[], "registry/tool@sha256:abc", true),
            (&["cafe:latest"], "cafe", true),
            (&["debian:12"], "cafe", false),
            (&[], "deadbeef", false),
        ] {
            assert_eq!(is_called(&found(tags), name), expected, "{name}");
        }
    }

    #[test]
    fn image_pull_names_exactly_one_tag() {
        for (name, expected) in [
            ("debian", "debian:latest"),
            ("debian:12", "debian:12"),
            ("registry:5000/team/tool", "registry:5000/team/tool:latest"),
            ("registry:5000/team/tool:1", "registry:5000/team/tool:1"),
            ("debian@sha256:abc", "debian@sha256:abc"),
        ] {
            assert_eq!(with_tag(name), expected);
        }
    }
}
