//! Per-engine prerequisites: the volume that holds the guest's binary, and whether the engine sees
//! this server's files. They are made once, by a carrier: a container that is created and never
//! started. Files are uploaded to it and looked up in it, which works with every engine. If a part
//! of the setup is gone later, it is made again.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::models::{ContainerCreateBody, HostConfig, Mount, VolumeCreateRequest};
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder,
    RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use rustix::process::geteuid;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::config::{DockerConfig, Endpoint, LinkMode};
use super::container_config::{
    BindMount, GUEST_DIRECTORY, LINK_DIRECTORY, OWN_FILES, bind, empty_mount, guest_mount,
};
use super::engine::{Engine, EngineFailure, Facts, QUICK, WORK};
use super::host_root::{archive_of_program, hash_of};
use super::images::Image;
use super::names::Names;
use super::path_map::PathMap;
use super::self_inspection::{Origins, ServerLocation, locate_server};
use super::single_flight::SingleFlight;
use crate::container::GUEST_PATH;
use crate::error::{RuntimeError, RuntimeErrorCode};

const STEP: &str = "prepare the engine";

/// The prefix of our directories, before the name of the run.
const LINKS: &str = "links-";
/// How long a failed setup is not retried.
const FAILURE_COUNTS: Duration = Duration::from_secs(2);
/// Where the carrier mounts our directory, as the engine sees it.
const LOOKED_AT: &str = "/.shoal-look";

/// The setup of one engine.
#[derive(Debug)]
pub(super) struct EngineSetup {
    /// The volume with the guest.
    pub volume: String,
    /// The directory of sockets, as the engine sees it, if containers can reach them.
    pub links: Option<String>,
    /// Whether the engine sees the same files as this server, by the same paths.
    pub same_files: bool,
    /// Whether that is in doubt: this server runs in a container that the engine does not know.
    pub doubtful: bool,
    /// The server's paths as the engine sees them, if the server runs in a container of this
    /// engine.
    inside: Option<Origins>,
    /// The engine that it belongs to.
    engine: Identity,
}

/// Distinguishes one engine from another, or from the same one with other settings. Not its id:
/// some engines report a new one with each request.
type Identity = (Option<String>, Option<String>, Vec<String>);

fn identity_of(facts: &Facts) -> Identity {
    let info = &facts.info;
    let options = info.security_options.clone().unwrap_or_default();
    (info.docker_root_dir.clone(), info.kernel_version.clone(), options)
}

/// Whether the engine may see our files, so that a test is worthwhile.
fn could_share(endpoint: &Endpoint, facts: &Facts) -> bool {
    let is_here = matches!(endpoint, Endpoint::Unix(_));
    let kernel = rustix::system::uname();
    let kernel = kernel.release().to_string_lossy();
    // An engine in a virtual machine may see our files, but cannot reach our sockets.
    is_here && facts.info.kernel_version.as_deref() == Some(&*kernel)
}

fn may_link_by_socket(link: LinkMode, facts: &Facts) -> bool {
    match link {
        LinkMode::Attach => false,
        LinkMode::Socket => true,
        // Mapped users cannot enter our directories, and SELinux keeps containers from unlabelled
        // sockets.
        LinkMode::Auto => {
            !facts.has_security_option("userns") && !facts.has_security_option("selinux")
        }
    }
}

/// Whether used containers of this engine can be wiped, as far as is known before there is one.
pub(super) fn may_be_wiped(endpoint: &Endpoint, link: LinkMode, facts: &Facts) -> bool {
    geteuid().is_root() && could_share(endpoint, facts) && may_link_by_socket(link, facts)
}

/// Makes and remembers the engine setup.
pub(super) struct Preparation {
    engine: Arc<Engine>,
    names: Names,
    link: LinkMode,
    host_path_map: PathMap,
    run_directory: PathBuf,
    links: PathBuf,
    carriers: AtomicU64,
    /// Held while a carrier exists; closed at the shutdown, when no further one may be made.
    carrying: Semaphore,
    present: Mutex<Option<Arc<EngineSetup>>>,
    /// One setup serves all waiting launches.
    setups: SingleFlight<Arc<EngineSetup>, RuntimeError>,
}

impl Preparation {
    /// Makes our own directory. Needs no engine.
    pub(super) fn new(
        config: &DockerConfig,
        engine: Arc<Engine>,
        names: Names,
    ) -> Result<Self, RuntimeError> {
        let links = config.run_directory.join(format!("{LINKS}{}", config.epoch));
        let preparation = Self {
            engine,
            names,
            link: config.link,
            host_path_map: config.host_path_map.clone(),
            run_directory: config.run_directory.clone(),
            links,
            carriers: AtomicU64::new(0),
            carrying: Semaphore::new(1),
            present: Mutex::default(),
            setups: SingleFlight::new(FAILURE_COUNTS),
        };
        preparation.make_links()?;
        Ok(preparation)
    }

    /// Where sockets are made.
    pub(super) fn links(&self) -> &Path {
        &self.links
    }

    /// The volume with the guest.
    pub(super) fn volume(&self) -> String {
        self.names.guest_volume(&hash_of(guest_image::PACKED))
    }

    fn present(&self) -> MutexGuard<'_, Option<Arc<EngineSetup>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The setup. Made with the help of this image if there is none, within `patience`.
    pub(super) async fn setup(
        self: &Arc<Self>,
        image: &Image,
        patience: Duration,
    ) -> Result<Arc<EngineSetup>, RuntimeError> {
        let found = self.engine.find().await.map_err(|failure| self.failed(&failure))?;
        let engine = identity_of(&found.facts);
        let present = self.present().clone();
        if let Some(setup) = present.filter(|setup| setup.engine == engine) {
            return Ok(setup);
        }
        let (preparation, image) = (Arc::clone(self), image.clone());
        let flight = self.setups.join("setup", || async move {
            let found = preparation.prepare(&image).await?;
            tracing::info!(
                engine = %preparation.engine.endpoint(),
                by_socket = found.links.is_some(),
                same_files = found.same_files,
                "the Docker engine is set up"
            );
            let found = Arc::new(found);
            *preparation.present() = Some(Arc::clone(&found));
            Ok(found)
        });
        let failed = |cause: &'static str| {
            Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause))
        };
        match timeout(patience, flight.result()).await {
            Ok(Some(setup)) => setup,
            Ok(None) => failed("the setup of the engine panicked"),
            Err(_) => failed("the setup of the engine is still in progress"),
        }
    }

    /// Forgets this setup, because a part of it is gone. A newer setup is not touched.
    pub(super) fn forget(&self, gone: &Arc<EngineSetup>) {
        let mut present = self.present();
        if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, gone)) {
            *present = None;
        }
    }

    fn failed(&self, failure: &EngineFailure) -> RuntimeError {
        self.engine.failed(RuntimeErrorCode::LaunchFailed, STEP, failure)
    }

    async fn prepare(&self, image: &Image) -> Result<EngineSetup, RuntimeError> {
        let facts = self.engine.find().await.map_err(|failure| self.failed(&failure))?.facts;
        refuse_other_processors(&facts)?;
        // A cleanup job may have removed our directory.
        self.make_links()?;
        let found = self.look(&facts, image).await.map_err(|failure| self.failed(&failure))?;
        if self.link == LinkMode::Socket && found.links.is_none() {
            let cause = "docker.link is `socket`, but the engine does not see our files: set it to \
                         `auto`, or mount /run/shoal into the container of this server";
            return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause));
        }
        Ok(found)
    }

    async fn look(&self, facts: &Facts, image: &Image) -> Result<EngineSetup, EngineFailure> {
        let whereabouts = locate_server(&self.engine).await?;
        let doubtful = whereabouts == ServerLocation::Elsewhere;
        let inside = match whereabouts {
            ServerLocation::Container(origins) => Some(origins),
            ServerLocation::Machine | ServerLocation::Elsewhere => None,
        };
        let volume = self.volume();
        let request = VolumeCreateRequest {
            name: Some(volume.clone()),
            labels: Some(self.names.labels(None)),
            ..VolumeCreateRequest::default()
        };
        self.engine.ask(WORK, |docker| async move { docker.create_volume(request).await }).await?;
        let ours = self.links.to_str().map(str::to_owned);
        let theirs = ours.as_ref().and_then(|ours| match &inside {
            Some(inside) => self.host_path_map.translate(ours).or_else(|| inside.translate(ours)),
            None => Some(self.host_path_map.translate(ours).unwrap_or_else(|| ours.clone())),
        });
        let mut shared = None;
        if could_share(self.engine.endpoint(), facts)
            && let Some(theirs) = &theirs
        {
            shared = self.carry(image, &volume, Some(theirs), facts.api).await?;
        }
        let shared = match shared {
            Some(sees_ours) => sees_ours,
            None => self.carry(image, &volume, None, facts.api).await?.unwrap_or(false),
        };
        let links = theirs.clone().filter(|_| shared && may_link_by_socket(self.link, facts));
        let same_files = shared && inside.is_none() && theirs == ours;
        Ok(EngineSetup { volume, links, same_files, doubtful, inside, engine: identity_of(facts) })
    }

    /// Whether a carrier is in use now: any other carrier was left behind.
    pub(super) fn carries(&self) -> bool {
        self.carrying.available_permits() == 0
    }

    /// Waits until no carrier is in use, and allows no further one.
    pub(super) async fn end(&self) {
        // A carrier that takes too long is found by its label.
        let _ = timeout(WORK, self.carrying.acquire()).await;
        self.carrying.close();
    }

    /// Fills the volume by a carrier, and tests whether the carrier sees a directory of ours. None
    /// if the engine cannot mount that directory.
    async fn carry(
        &self,
        image: &Image,
        volume: &str,
        looked_at: Option<&str>,
        api: (usize, usize),
    ) -> Result<Option<bool>, EngineFailure> {
        let Ok(_carrying) = self.carrying.acquire().await else {
            return Err(EngineFailure::Unanswered("the runtime is shut down".into()));
        };
        let mut mounts = vec![guest_mount(volume, &self.names, false)];
        // A carrier never runs, but the engine would fill its volumes.
        mounts.extend(image.volumes.iter().map(|path| empty_mount(path)));
        mounts.extend(looked_at.map(|source| {
            let shown = BindMount {
                source: source.to_owned(),
                target: LOOKED_AT.to_owned(),
                read_only: true,
            };
            bind(&shown, api)
        }));
        let name = self.names.carrier(self.carriers.fetch_add(1, Ordering::Relaxed));
        let carried = match self.create_carrier(&image.id, &name, mounts).await {
            // The engine's host has no such directory.
            Err(EngineFailure::Refused { .. }) if looked_at.is_some() => Ok(None),
            Err(failure) => Err(failure),
            Ok(()) => self.fill(&name, looked_at.is_some()).await.map(Some),
        };
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed = self
            .engine
            .ask(WORK, |docker| async move { docker.remove_container(&name, Some(options)).await })
            .await;
        match removed {
            Err(failure) if !failure.is_missing() => {
                // It never runs, and the next comparison of containers removes it.
                tracing::debug!(why = failure.message(), "carrier container not removed yet");
            }
            Ok(()) | Err(_) => {}
        }
        carried
    }

    async fn create_carrier(
        &self,
        image: &str,
        name: &str,
        mounts: Vec<Mount>,
    ) -> Result<(), EngineFailure> {
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(vec![GUEST_PATH.to_owned()]),
            labels: Some(self.names.labels(None)),
            network_disabled: Some(true),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                mounts: Some(mounts),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        self.engine.note_create_request();
        self.engine
            .ask(WORK, |docker| async move { docker.create_container(Some(options), body).await })
            .await
            .map(drop)
    }

    /// Uploads the guest to the volume. True if the carrier sees a file of ours.
    async fn fill(&self, carrier: &str, look: bool) -> Result<bool, EngineFailure> {
        let name = GUEST_PATH.strip_prefix(GUEST_DIRECTORY).unwrap_or(GUEST_PATH);
        let name = name.trim_start_matches('/');
        let archive = guest_image::bytes()
            .and_then(|guest| archive_of_program(name, &guest, LINK_DIRECTORY))
            .map_err(|error| EngineFailure::Unanswered(error.to_string()))?;
        let options = UploadToContainerOptionsBuilder::new().path(GUEST_DIRECTORY).build();
        let body = bollard::body_full(archive.into());
        self.engine
            .ask(WORK, |docker| async move {
                docker.upload_to_container(carrier, Some(options), body).await
            })
            .await?;
        if !look {
            return Ok(false);
        }
        // Any of our files will do, to see whether the engine sees them.
        let [(_, name), ..] = OWN_FILES;
        let path = format!("{LOOKED_AT}/{name}");
        let options = ContainerArchiveInfoOptionsBuilder::new().path(&path).build();
        let seen = self
            .engine
            .ask(QUICK, |docker| async move {
                docker.get_container_archive_info(carrier, Some(options)).await
            })
            .await;
        match seen {
            Ok(_) => Ok(true),
            Err(EngineFailure::Refused { .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Whether used containers can be wiped, as far as is known before there is one.
    pub(super) fn may_be_wiped(&self, facts: &Facts) -> bool {
        may_be_wiped(self.engine.endpoint(), self.link, facts)
    }

    /// A path of this server as the engine sees it; none if it does not, as far as is known.
    pub(super) fn engine_path(&self, setup: &EngineSetup, path: &str) -> Option<String> {
        let said = self.host_path_map.translate(path);
        match &setup.inside {
            Some(inside) => said.or_else(|| inside.translate(path)),
            None => said.or_else(|| setup.same_files.then(|| path.to_owned())),
        }
    }

    /// Whether the translation of a path assumes that the engine's files are the server's.
    pub(super) fn relies_on_same_files(&self, setup: &EngineSetup, path: &str) -> bool {
        setup.inside.is_none() && self.host_path_map.translate(path).is_none()
    }

    /// Whether this server itself may only read this path, as far as is known. A path of the
    /// configured map is the operator's responsibility.
    pub(super) fn is_read_only(&self, setup: &EngineSetup, path: &str) -> bool {
        let mapped = self.host_path_map.translate(path).is_some();
        !mapped && setup.inside.as_ref().is_some_and(|inside| inside.is_read_only(path))
    }

    /// Closed to all other users: a process that can enter could pretend to be a guest.
    fn make_links(&self) -> Result<(), RuntimeError> {
        make_directory(&self.run_directory, &self.links)
            .map_err(|error| RuntimeError::system("make the run directory", &error))
    }

    /// Removes directories that earlier runs left.
    pub(super) fn remove_links_of_others(&self) {
        let Some(above) = self.links.parent() else { return };
        for entry in fs::read_dir(above).into_iter().flatten().flatten() {
            let is_ours = entry.path() == self.links;
            if !is_ours && entry.file_name().to_string_lossy().starts_with(LINKS) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Removes our own directory, and the one above it if it is empty.
    pub(super) fn remove_links(&self) {
        let _ = fs::remove_dir_all(&self.links);
        let _ = fs::remove_dir(&self.run_directory);
    }
}

impl Facts {
    /// Whether the engine lists this security option.
    pub(super) fn has_security_option(&self, word: &str) -> bool {
        let options = self.info.security_options.iter().flatten();
        options.into_iter().any(|option| {
            option.split(',').any(|part| part == word || part.strip_prefix("name=") == Some(word))
        })
    }
}

/// An engine on another processor architecture could not run the guest.
fn refuse_other_processors(facts: &Facts) -> Result<(), RuntimeError> {
    let ours = std::env::consts::ARCH;
    // Engines use their own names for architectures.
    let theirs = facts.info.architecture.as_deref().map(|name| match name {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        name => name,
    });
    match theirs {
        Some(theirs) if theirs != ours => {
            let cause = format!(
                "the Docker engine is for {theirs} processors and this server for {ours}: use an \
                 engine on a machine of the same kind"
            );
            Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause))
        }
        Some(_) | None => Ok(()),
    }
}

fn make_directory(above: &Path, links: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    match fs::DirBuilder::new().mode(0o700).create(links) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    for (path, contents) in jail::etc::written() {
        let ours = OWN_FILES.iter().find(|(inside, _)| inside.strip_prefix('/') == Some(path));
        let Some((_, name)) = ours else { continue };
        let file = links.join(name);
        fs::write(&file, contents)?;
        // Whatever the umask: programs inside must be able to read it.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}
