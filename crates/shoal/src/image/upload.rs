//! Sends an image to a server: a file or standard input as it is, a directory as an archive that is
//! made while it is sent.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use client::Upload;
use model::ImageName;
use tasks::spawn_blocking;
use wire::Image;

use crate::cp::transfer_stream::{Counter, UploadWriter};
use crate::failure::Failure;
use crate::output::Output;
use crate::server::{Server, cannot};

pub(super) fn to_server(
    server: &Server,
    name: &ImageName,
    reference: Option<&str>,
    source: &Path,
    output: &Output,
) -> Result<Image, Failure> {
    server.with(async |client| {
        let (sender, upload) = Upload::channel();
        let count = Counter::default();
        let mut outgoing = UploadWriter::new(sender, count.clone());
        let from = source.to_owned();
        let reading = spawn_blocking(move || {
            let read = send(&from, &mut outgoing);
            if read.is_err() {
                outgoing.fail();
            }
            read
        });
        let importing = client.import_image(name, reference, upload);
        let imported = count.watch(importing, output).await;
        match imported {
            Ok(image) => Ok(image),
            // If the source could not be read, that is the cause of the server's error.
            Err(error) => {
                let own = if reading.is_finished() { reading.await.ok() } else { None };
                match own {
                    Some(Err(failure)) => Err(failure),
                    Some(Ok(())) | None => Err(cannot("import the image")(error)),
                }
            }
        }
    })
}

fn send(source: &PathBuf, to: &mut UploadWriter) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::new(format!("cannot send {}", source.display()), error).usage();
    if source == Path::new("-") {
        io::copy(&mut io::stdin(), to).map_err(failed)?;
    } else if source.is_dir() {
        images::write_archive(source, &mut *to).map_err(|error| {
            Failure::of_image(format!("cannot send {}", source.display()), &error)
        })?;
    } else {
        let mut file = File::open(source).map_err(failed)?;
        io::copy(&mut file, to).map_err(failed)?;
    }
    to.flush().map_err(failed)
}
