//! `shoal image`: manages images, which templates use as root filesystems. Without `--server` it
//! uses the image store of this machine directly, whether a server runs or not.

mod display;
mod local_store;
mod upload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use model::{ImageId, ImageName};
use serde_json::json;
use wire::{Image, ImageRemoved};

use self::local_store::LocalStore;
use crate::failure::Failure;
use crate::output::Output;
use crate::relative_time;
use crate::server::{Server, cannot};

/// The directory of the image store in a data directory.
pub(crate) const STORE: &str = "images";

/// Arguments of `shoal image`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    debootstrap --variant=minbase bookworm ./debian && shoal image import debian ./debian\n  \
    docker save python:3.12-slim | shoal image import python:3.12 -\n  \
    shoal image import tools rootfs.tar.zst      a tarball: plain, gzip or zstd\n  \
    shoal image import app ./oci-layout          an OCI layout, as a directory or an archive\n  \
    shoal image ls\n  \
    shoal image show python:3.12\n  \
    shoal image rm python:3.12                   remove the name, and layers that no other image uses\n  \
    shoal image gc                               remove images that have no name and no use\n\n\
    A template uses an image with `root = { image = \"python:3.12\" }`. Images are in DATA_DIR/images of\n\
    this machine; --server or $SHOAL_URL selects the images of a server, and imports are sent to it.\n\n\
    Exit codes: 0; 1 if the image store or the server refused; 2 if the source cannot be used;\n\
    3 if no server answers; 125 if the store cannot be written."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    act: Option<Act>,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Debug, Clone, clap::Args)]
struct Shared {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Import an image: a directory, a tarball, an OCI layout, or the output of `docker save`
    Import {
        /// Name of the image; an older image with this name loses the name
        #[arg(value_parser = ImageName::new)]
        name: ImageName,
        /// Path of the directory or archive; - for standard input
        source: PathBuf,
        /// Name of the image in the source, if the source has several images
        #[arg(long, value_name = "NAME")]
        reference: Option<String>,
        #[command(flatten)]
        shared: Shared,
    },
    /// List images
    Ls(Shared),
    /// Show an image
    Show {
        /// Name of the image, its id, or the beginning of its id
        image: String,
        #[command(flatten)]
        shared: Shared,
    },
    /// Remove names of images, and then the images and layers that nothing uses
    Rm {
        /// Names of images; an id stands for all names of its image
        #[arg(value_name = "IMAGE", required = true)]
        images: Vec<String>,
        /// Also remove images in use: their files stay until their sandboxes have ended
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        shared: Shared,
    },
    /// Remove images without a name that nothing uses, and layers that no image has
    Gc(Shared),
}

/// An image of this machine's store, for a sandbox without a server.
pub(crate) struct LocalImage {
    pub(crate) store: PathBuf,
    pub(crate) id: ImageId,
}

impl LocalImage {
    pub(crate) fn by_name(image: &str) -> Result<Self, Failure> {
        let server = Server::default();
        let id = LocalStore::find(&server)?.show(image).map_err(Failure::as_own_failure)?.id;
        Ok(Self { store: server.data_dir()?.join(STORE), id })
    }
}

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let Arguments { act, shared } = arguments;
    match act.unwrap_or(Act::Ls(shared)) {
        Act::Import { name, source, reference, shared } => {
            let image = if shared.server.is_named() {
                upload::to_server(&shared.server, &name, reference.as_deref(), &source, output)?
            } else {
                LocalStore::make(&shared.server)?.import(&name, reference, &source, output)?
            };
            if shared.json {
                output.say_value(&image)?;
            } else {
                output.say(&image.id.to_string());
                display::imported(&image, output);
            }
        }
        Act::Ls(shared) => {
            let images = list(&shared)?;
            if shared.json {
                output.say_json(&json!({ "images": images }));
            } else {
                display::table(&images, relative_time::now()).say(output, "there are no images");
            }
        }
        Act::Show { image, shared } => {
            let image = if shared.server.is_named() {
                shared.server.with(async |client| {
                    client.image(&image).await.map_err(cannot("show the image"))
                })?
            } else {
                LocalStore::find(&shared.server)?.show(&image)?
            };
            if shared.json {
                output.say_value(&image)?;
            } else {
                display::one(&image, output);
            }
        }
        Act::Rm { images, force, shared } => {
            let (removed, outcome) = remove(&images, force, &shared)?;
            if shared.json {
                output.say_json(&json!({ "removed": removed }));
            } else {
                for name in removed.iter().flat_map(|removed| &removed.names) {
                    output.say(name.as_str());
                }
                if !removed.is_empty() {
                    let bytes = removed.iter().map(|removed| removed.bytes).sum();
                    output.remark(&format!("{} freed", display::size(bytes)));
                }
            }
            outcome?;
        }
        Act::Gc(shared) => {
            if shared.server.is_named() {
                return Err(Failure::new(
                    "cannot collect garbage",
                    "--server or $SHOAL_URL names a server",
                )
                .remedy("a server collects garbage by itself, after every import and removal")
                .usage());
            }
            let collected = LocalStore::find(&shared.server)?.collect()?;
            if shared.json {
                output.say_json(&json!({
                    "images": collected.images,
                    "layers": collected.layers,
                    "bytes": collected.bytes,
                    "in_use": collected.in_use,
                }));
            } else {
                display::collected(&collected, output);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(shared: &Shared) -> Result<Vec<Image>, Failure> {
    if shared.server.is_named() {
        let listed = async |client: client::Client| client.images().await;
        return shared
            .server
            .with(async |client| listed(client).await.map_err(cannot("list images")));
    }
    LocalStore::find(&shared.server)?.list()
}

/// What was removed, and the failure that stopped the rest.
type Removal = (Vec<ImageRemoved>, Result<(), Failure>);

fn remove(images: &[String], force: bool, shared: &Shared) -> Result<Removal, Failure> {
    let mut removed = Vec::new();
    if !shared.server.is_named() {
        let here = LocalStore::find(&shared.server)?;
        for image in images {
            match here.remove(image, force) {
                Ok(gone) => removed.push(gone),
                Err(failure) => return Ok((removed, Err(failure))),
            }
        }
        return Ok((removed, Ok(())));
    }
    shared.server.with(async |client| {
        for image in images {
            match client.delete_image(image, force).await {
                Ok(gone) => removed.push(gone),
                Err(error) => {
                    return Ok((removed, Err(cannot(&format!("remove {image}"))(error))));
                }
            }
        }
        Ok((removed, Ok(())))
    })
}
