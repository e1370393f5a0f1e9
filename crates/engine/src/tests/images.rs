//! Imports whose client is gone.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use images::Store;
use model::ImageName;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::node::{Node, config};
use crate::{ImageRequest, Roots};

/// A file of a gigabyte that arrives a little at a time.
struct Slow {
    header: io::Cursor<Vec<u8>>,
    began: UnboundedSender<()>,
}

impl Read for Slow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.header.read(into)?;
        if count > 0 {
            return Ok(count);
        }
        let _ = self.began.send(());
        std::thread::sleep(Duration::from_millis(5));
        let count = into.len().min(4096);
        into[..count].fill(7);
        Ok(count)
    }
}

fn header() -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..4].copy_from_slice(b"file");
    block[100..107].copy_from_slice(b"0000644");
    block[124..135].copy_from_slice(b"10000000000");
    block[148..156].fill(b' ');
    block[156] = b'0';
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

#[tokio::test]
async fn image_import_ends_when_its_client_is_gone() {
    let path = std::env::temp_dir().join(format!("shoal-engine-images-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let images = Store::open(&path).unwrap();
    let mut config = config();
    config.roots = Roots { images: Some(images), directories: Vec::new() };
    let node = Node::start(config).await;
    let (began, mut has_begun) = unbounded_channel();
    let archive = Box::new(Slow { header: io::Cursor::new(header()), began });
    let name = ImageName::new("a").unwrap();
    let request = ImageRequest { name, reference: None, archive };
    let engine = node.engine.clone();
    let importing = tokio::spawn(async move { engine.import_image(request).await });
    has_begun.recv().await.unwrap();
    importing.abort();
    let is_empty = |path: &Path| std::fs::read_dir(path).unwrap().next().is_none();
    let ended = timeout(Duration::from_secs(20), async {
        while !is_empty(&path.join("tmp")) {
            sleep(Duration::from_millis(10)).await;
        }
    });
    ended.await.expect("the import goes on without its client");
    std::fs::remove_dir_all(&path).unwrap();
}
