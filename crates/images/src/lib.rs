//! Root filesystems from images: a directory, a tarball, an OCI layout or the output of `docker
//! save` becomes an image: layers in a store, each unpacked once and shared by every image that has
//! it. And back: an image becomes what `docker load` reads.
//!
//! Archives are not trusted. Nothing of them leaves the directory of its layer while it is
//! unpacked, and nothing of them keeps a privilege: no devices, no setuid, no owners, no
//! attributes. All of this is blocking code; callers that must not block use other threads.

mod digest;
mod directories;
mod error;
mod layer_archive;
mod source;
mod store;
mod stream;
pub mod unpack;

pub use digest::Digest;
pub use directories::is_directory_beneath;
pub use error::{ImageError, ImageErrorCode};
pub use source::{ImageConfig, Source, write_archive};
pub use store::{
    Collected, Image, ImageHold, ImportOptions, Imported, Layer, Progress, Removed, Resolved, Store,
};
pub use unpack::{Limits, Report};
