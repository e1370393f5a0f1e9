//! An image store that lies: lists of layers that name something else, layers that are links. The
//! launcher reads the store as it is on disk, so it must not believe more of it than it has to.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use model::ImageId;
use runtime::native::NativeConfig;
use runtime::{ExecSpec, LaunchSpec, Root, Runtime as _};

use crate::native::node::{Node, needs, on_node};

/// The name of a layer.
fn digest(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

struct Store {
    place: PathBuf,
    last: u8,
}

impl Store {
    fn at(place: PathBuf) -> Result<Self> {
        for name in ["layers", "images", "names", "tmp"] {
            std::fs::create_dir_all(place.join(name))?;
        }
        Ok(Self { place, last: 0 })
    }

    /// An image with this list.
    fn image(&mut self, list: &str) -> Result<ImageId> {
        let (id, place) = self.place_of_next()?;
        std::fs::write(place.join("layers"), list)?;
        Ok(id)
    }

    fn place_of_next(&mut self) -> Result<(ImageId, PathBuf)> {
        self.last += 1;
        let id = ImageId::from_bytes([self.last; 32]);
        let place = self.place.join("images").join(id.to_string());
        std::fs::create_dir_all(&place)?;
        Ok((id, place))
    }

    /// A layer with a static program that does nothing.
    fn layer(&self, byte: u8) -> Result<PathBuf> {
        let layer = self.place.join("layers").join(digest(byte));
        std::fs::create_dir_all(layer.join("bin"))?;
        let program = layer.join("bin/only");
        std::fs::write(&program, guest_image::bytes()?)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode)?;
        Ok(layer)
    }
}

/// Names that are no digests, or lead elsewhere (as in CVE-2014-9357 and CVE-2022-23648, where
/// paths of images were the host's).
#[test]
fn cve_2014_9357_cve_2022_23648_an_image_store_that_lies_is_refused() -> Result<()> {
    let place = std::env::temp_dir().join(format!("shoal-lies-{}", std::process::id()));
    let change = |config: &mut NativeConfig| config.images = Some(place.clone());
    let mut store = Store::at(place.clone())?;
    let outcome = on_node(change, async |node: &Node| lies(node, &mut store, &place).await);
    std::fs::remove_dir_all(&place)?;
    outcome
}

async fn lies(node: &Node, store: &mut Store, place: &Path) -> Result<()> {
    let outside = node.directory().join("outside");
    std::fs::create_dir_all(outside.join("bin"))?;
    std::fs::copy(store.layer(1)?.join("bin/only"), outside.join("bin/only"))?;
    let good = digest(1);
    let launch = async |image: ImageId| {
        node.native().launch(LaunchSpec { root: Root::Image(image), ..node.spec() }).await
    };
    // So that being refused means something.
    let honest = store.image(&format!("{good}\n"))?;
    let sandbox = launch(honest).await?;
    let ran = node.run(&sandbox, ExecSpec::argv(["/bin/only", "noop"])).await?;
    ensure!(ran.exit.success(), "{ran:?}");
    sandbox.kill().await?;

    symlink(&outside, place.join("layers").join(digest(2)))?;
    std::fs::write(place.join("layers").join(digest(3)), "a file")?;
    let outside = outside.to_str().context("temporary paths are text")?;
    let many: Vec<String> = (100..165).map(digest).collect();
    for name in &many {
        std::fs::create_dir_all(place.join("layers").join(name))?;
    }
    let lists = [
        String::new(),
        "\n".to_owned(),
        "..\n".to_owned(),
        "../../../../../etc\n".to_owned(),
        format!("{outside}\n"),
        format!("../images/{honest}\n"),
        format!("{}\n", good.to_uppercase().replace('0', "A")),
        format!("{good}/bin\n"),
        format!("{good}:{outside}\n"),
        format!("{good}\n{outside}\n"),
        format!("{}\n", digest(2)),
        format!("{}\n", digest(3)),
        format!("{}\n", digest(4)),
        format!("{good}\n{}\n", digest(2)),
        format!("{good}\n").repeat(200),
        // One more than fit: the one on top must not be forgotten silently.
        format!("{}\n", many.join("\n")),
    ];
    for list in lists {
        let image = store.image(&list)?;
        ensure!(launch(image).await.is_err(), "an image of {list:?} was launched");
    }
    let (linked, at) = store.place_of_next()?;
    std::fs::write(place.join("elsewhere"), format!("{good}\n"))?;
    symlink(place.join("elsewhere"), at.join("layers"))?;
    ensure!(launch(linked).await.is_err(), "a list that is a link was read");
    let (pipe, at) = store.place_of_next()?;
    if needs("/usr/bin/mkfifo")? {
        std::process::Command::new("/usr/bin/mkfifo").arg(at.join("layers")).status()?;
        ensure!(launch(pipe).await.is_err(), "a list that is a pipe was read");
    }
    let missing = ImageId::from_bytes([250; 32]);
    ensure!(launch(missing).await.is_err(), "an image that does not exist was launched");
    // None of that disturbs other sandboxes.
    launch(honest).await?.inside().ping().await?;
    Ok(())
}
