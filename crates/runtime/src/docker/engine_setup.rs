//! What all containers at one engine stand on: a volume with the guest's binary in it, and what is known
//! of the files that the engine and we have in common. It is found out once, by a container that is made
//! and never started: files are put into it and looked for in it, which needs no path of ours at all and
//! works with every engine. When something of it turns out to be gone, it is made again.

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
use super::container_config::{GUEST_DIRECTORY, LINK_DIRECTORY, Shown, bind, guest_mount, nothing};
use super::engine::{Engine, Facts, QUICK, Trouble, WORK};
use super::host_root::{archive_of_program, hash_of};
use super::images::Image;
use super::names::Names;
use super::path_map::PathMap;
use super::self_inspection::{Origins, Whereabouts, whereabouts};
use super::single_flight::Flights;
use crate::container::GUEST_PATH;
use crate::error::{RuntimeError, RuntimeErrorCode};

const STEP: &str = "prepare the engine";

/// What our directories are called, before the name of the run.
const LINKS: &str = "links-";
/// The file with the names of loopback, by which the engine also shows that it sees our files.
const HOSTS: &str = "hosts";
/// How long a failure counts before it is tried again.
const FAILURE_COUNTS: Duration = Duration::from_secs(2);
/// Where the engine shows what it sees of our directory.
const LOOKED_AT: &str = "/.shoal-look";

/// What was found out.
#[derive(Debug)]
pub(super) struct Ground {
    /// The volume with the guest.
    pub volume: String,
    /// Where sockets are made, as the engine sees it, if they can be seen in containers.
    pub links: Option<String>,
    /// Whether the engine's files are ours, by the same paths.
    pub same_files: bool,
    /// Whether that is in doubt: we are in a container, and the engine does not know it.
    pub doubtful: bool,
    /// Our paths as the engine sees them, if we are in a container of its own.
    inside: Option<Origins>,
    /// Which engine it was found out of.
    engine: Identity,
}

/// What tells one engine from another, or from what it was before it was set up differently. Not its
/// id: there are engines that make one up whenever they are asked.
type Identity = (Option<String>, Option<String>, Vec<String>);

fn identity_of(facts: &Facts) -> Identity {
    let info = &facts.info;
    let options = info.security_options.clone().unwrap_or_default();
    (info.docker_root_dir.clone(), info.kernel_version.clone(), options)
}

/// Whether it is worth looking whether the engine sees our files.
fn could_share(endpoint: &Endpoint, facts: &Facts) -> bool {
    let is_here = matches!(endpoint, Endpoint::Unix(_));
    let kernel = rustix::system::uname();
    let kernel = kernel.release().to_string_lossy();
    // In a virtual machine of its own it may see files, but sockets lead nowhere.
    is_here && facts.info.kernel_version.as_deref() == Some(&*kernel)
}

fn may_link_by_socket(link: LinkMode, facts: &Facts) -> bool {
    match link {
        LinkMode::Attach => false,
        LinkMode::Socket => true,
        // Users that are others outside cannot come through our directories, and labels keep
        // containers from sockets that have none.
        LinkMode::Auto => !facts.says("userns") && !facts.says("selinux"),
    }
}

/// Whether used containers of this engine can be wiped, as far as is known before there is one.
pub(super) fn may_be_wiped(endpoint: &Endpoint, link: LinkMode, facts: &Facts) -> bool {
    geteuid().is_root() && could_share(endpoint, facts) && may_link_by_socket(link, facts)
}

/// Makes sure of it.
pub(super) struct Preparation {
    engine: Arc<Engine>,
    names: Names,
    link: LinkMode,
    host_path_map: PathMap,
    run_directory: PathBuf,
    links: PathBuf,
    carriers: AtomicU64,
    /// Held while a container that carries files exists; closed when none may any more.
    carrying: Semaphore,
    present: Mutex<Option<Arc<Ground>>>,
    /// It is found out once for all who want it.
    flights: Flights<Arc<Ground>, RuntimeError>,
}

impl Preparation {
    /// Makes our own directory; the engine need not be there.
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
            flights: Flights::new(FAILURE_COUNTS),
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

    fn present(&self) -> MutexGuard<'_, Option<Arc<Ground>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ground, made with the help of this image if it is not known, as long as patience lasts.
    pub(super) async fn ground(
        self: &Arc<Self>,
        image: &Image,
        patience: Duration,
    ) -> Result<Arc<Ground>, RuntimeError> {
        let found = self.engine.find().await.map_err(|trouble| self.failed(&trouble))?;
        let engine = identity_of(&found.facts);
        let present = self.present().clone();
        if let Some(ground) = present.filter(|ground| ground.engine == engine) {
            return Ok(ground);
        }
        let (preparation, image) = (Arc::clone(self), image.clone());
        let flight = self.flights.board("ground", || async move {
            let found = preparation.find_out(&image).await?;
            tracing::info!(
                engine = %preparation.engine.endpoint(),
                by_socket = found.links.is_some(),
                same_files = found.same_files,
                "the Docker engine is prepared"
            );
            let found = Arc::new(found);
            *preparation.present() = Some(Arc::clone(&found));
            Ok(found)
        });
        let failed = |cause: &'static str| {
            Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause))
        };
        match timeout(patience, flight.landed()).await {
            Ok(Some(ground)) => ground,
            Ok(None) => failed("preparing the engine was given up"),
            Err(_) => failed("the engine is still being prepared"),
        }
    }

    /// Something of this one is gone; what others found meanwhile is not touched.
    pub(super) fn forget(&self, gone: &Arc<Ground>) {
        let mut present = self.present();
        if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, gone)) {
            *present = None;
        }
    }

    fn failed(&self, trouble: &Trouble) -> RuntimeError {
        self.engine.failed(RuntimeErrorCode::LaunchFailed, STEP, trouble)
    }

    async fn find_out(&self, image: &Image) -> Result<Ground, RuntimeError> {
        let facts = self.engine.find().await.map_err(|trouble| self.failed(&trouble))?.facts;
        refuse_other_processors(&facts)?;
        // Somebody may have tidied it away.
        self.make_links()?;
        let found = self.look(&facts, image).await.map_err(|trouble| self.failed(&trouble))?;
        if self.link == LinkMode::Socket && found.links.is_none() {
            let cause = "docker.link is `socket`, but the engine does not see our files: set it to \
                         `auto`, or mount /run/shoal into the container of this server";
            return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause));
        }
        Ok(found)
    }

    async fn look(&self, facts: &Facts, image: &Image) -> Result<Ground, Trouble> {
        let whereabouts = whereabouts(&self.engine).await?;
        let doubtful = whereabouts == Whereabouts::Elsewhere;
        let inside = match whereabouts {
            Whereabouts::Container(origins) => Some(origins),
            Whereabouts::Machine | Whereabouts::Elsewhere => None,
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
        Ok(Ground { volume, links, same_files, doubtful, inside, engine: identity_of(facts) })
    }

    /// Whether a container carries files now: any other one was left behind.
    pub(super) fn carries(&self) -> bool {
        self.carrying.available_permits() == 0
    }

    /// Waits until nothing is carried, for good.
    pub(super) async fn end(&self) {
        // What takes longer than anything may is found by its label.
        let _ = timeout(WORK, self.carrying.acquire()).await;
        self.carrying.close();
    }

    /// Fills the volume by way of a container that never runs, and looks what it sees of a directory
    /// of ours. None if the engine cannot show that directory.
    async fn carry(
        &self,
        image: &Image,
        volume: &str,
        looked_at: Option<&str>,
        api: (usize, usize),
    ) -> Result<Option<bool>, Trouble> {
        let Ok(_carrying) = self.carrying.acquire().await else {
            return Err(Trouble::Unanswered("the runtime is shut down".into()));
        };
        let mut mounts = vec![guest_mount(volume, &self.names, false)];
        // It never runs, but the engine would fill volumes for it.
        mounts.extend(image.volumes.iter().map(|path| nothing(path)));
        mounts.extend(looked_at.map(|source| {
            let shown =
                Shown { source: source.to_owned(), target: LOOKED_AT.to_owned(), read_only: true };
            bind(&shown, api)
        }));
        let name = self.names.carrier(self.carriers.fetch_add(1, Ordering::Relaxed));
        let carried = match self.create_carrier(&image.id, &name, mounts).await {
            // There is no such directory where the engine is.
            Err(Trouble::Refused { .. }) if looked_at.is_some() => Ok(None),
            Err(trouble) => Err(trouble),
            Ok(()) => self.fill(&name, looked_at.is_some()).await.map(Some),
        };
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed = self
            .engine
            .ask(WORK, |docker| async move { docker.remove_container(&name, Some(options)).await })
            .await;
        match removed {
            Err(trouble) if !trouble.is_missing() => {
                // It never runs, and goes when what there is is compared with what should be.
                tracing::debug!(why = trouble.said(), "a container that carries files stays");
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
    ) -> Result<(), Trouble> {
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
        self.engine.is_asked_to_make();
        self.engine
            .ask(WORK, |docker| async move { docker.create_container(Some(options), body).await })
            .await
            .map(drop)
    }

    /// Puts the guest into the volume; whether the carrier sees a file of ours.
    async fn fill(&self, carrier: &str, look: bool) -> Result<bool, Trouble> {
        let name = GUEST_PATH.strip_prefix(GUEST_DIRECTORY).unwrap_or(GUEST_PATH);
        let name = name.trim_start_matches('/');
        let archive = guest_image::bytes()
            .and_then(|guest| archive_of_program(name, &guest, LINK_DIRECTORY))
            .map_err(|error| Trouble::Unanswered(error.to_string()))?;
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
        let path = format!("{LOOKED_AT}/{HOSTS}");
        let options = ContainerArchiveInfoOptionsBuilder::new().path(&path).build();
        let seen = self
            .engine
            .ask(QUICK, |docker| async move {
                docker.get_container_archive_info(carrier, Some(options)).await
            })
            .await;
        match seen {
            Ok(_) => Ok(true),
            Err(Trouble::Refused { .. }) => Ok(false),
            Err(trouble) => Err(trouble),
        }
    }

    /// Whether used containers can be wiped, as far as is known before there is one.
    pub(super) fn may_be_wiped(&self, facts: &Facts) -> bool {
        may_be_wiped(self.engine.endpoint(), self.link, facts)
    }

    /// A path of ours as the engine sees it; none if it does not, as far as is known.
    pub(super) fn engine_path(&self, ground: &Ground, path: &str) -> Option<String> {
        let said = self.host_path_map.translate(path);
        match &ground.inside {
            Some(inside) => said.or_else(|| inside.translate(path)),
            None => said.or_else(|| ground.same_files.then(|| path.to_owned())),
        }
    }

    /// Whether a path of ours is shown because the engine's files are taken for ours.
    pub(super) fn relies_on_same_files(&self, ground: &Ground, path: &str) -> bool {
        ground.inside.is_none() && self.host_path_map.translate(path).is_none()
    }

    /// Whether we may only read what is here, as far as is known: who maps a path answers for it.
    pub(super) fn is_read_only(&self, ground: &Ground, path: &str) -> bool {
        let mapped = self.host_path_map.translate(path).is_some();
        !mapped && ground.inside.as_ref().is_some_and(|inside| inside.is_read_only(path))
    }

    /// For us alone: whoever could come through here could pretend to be a guest.
    fn make_links(&self) -> Result<(), RuntimeError> {
        make_directory(&self.run_directory, &self.links)
            .map_err(|error| RuntimeError::system("make the run directory", &error))
    }

    /// The file with the names of loopback, as the engine sees it.
    pub(super) fn hosts(links: &str) -> String {
        format!("{links}/{HOSTS}")
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

    /// Removes our own directory, and the one above it if nobody else has anything there.
    pub(super) fn remove_links(&self) {
        let _ = fs::remove_dir_all(&self.links);
        let _ = fs::remove_dir(&self.run_directory);
    }
}

impl Facts {
    /// Whether the engine names this among what it has for security.
    pub(super) fn says(&self, word: &str) -> bool {
        let options = self.info.security_options.iter().flatten();
        options.into_iter().any(|option| {
            option.split(',').any(|part| part == word || part.strip_prefix("name=") == Some(word))
        })
    }
}

/// An engine for another kind of processor would find the guest and could not run it.
fn refuse_other_processors(facts: &Facts) -> Result<(), RuntimeError> {
    let ours = std::env::consts::ARCH;
    // Not every engine calls them as the kernel does.
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
    let hosts = jail::etc::written().into_iter().find(|(name, _)| *name == "etc/hosts");
    let contents = hosts.map(|(_, contents)| contents).unwrap_or_default();
    let hosts = links.join(HOSTS);
    fs::write(&hosts, contents)?;
    // Whatever we are usually keen to keep from others, programs inside read it.
    fs::set_permissions(&hosts, fs::Permissions::from_mode(0o644))
}
