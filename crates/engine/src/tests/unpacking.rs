//! Archives that are unpacked in a sandbox whose answers take long.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use model::{InstanceId, Refusal, Template, TemplateName};
use runtime::fake::FakeRuntime;
use runtime::{Inside, LaunchSpec, Runtime as _, RuntimeError};
use tar_stream::{Kind, NewEntry, end, padding};
use tokio::time::{Instant, sleep};

use crate::archive::{Bounds, EngineFiles, Files, Pieces, Unpacking, Unusual};

/// A sandbox that takes a second for each call, on a clock of its own.
struct Slow {
    files: EngineFiles,
    /// Its sandbox ends with it.
    _runtime: FakeRuntime,
}

impl Files for Slow {
    fn inside(&self) -> &dyn Inside {
        self.files.inside()
    }

    async fn within<T: Send>(
        &self,
        call: impl Future<Output = Result<T, RuntimeError>> + Send,
    ) -> Result<T, Refusal> {
        sleep(Duration::from_secs(1)).await;
        self.files.within(call).await
    }

    async fn explain(&self, error: io::Error) -> Refusal {
        self.files.explain(error).await
    }
}

/// An archive in one piece.
struct Whole(Option<Bytes>);

impl Pieces for Whole {
    type Error = ();

    async fn next_piece(&mut self) -> Result<Option<Bytes>, ()> {
        Ok(self.0.take())
    }
}

fn archive(entries: &[(Kind, &str, &str)]) -> Whole {
    let mut bytes = Vec::new();
    for (kind, path, text) in entries {
        let is_file = *kind == Kind::File;
        let contents = if is_file { text.as_bytes() } else { b"" };
        let size = contents.len() as u64;
        let entry = NewEntry {
            kind: *kind,
            path: path.as_bytes(),
            mode: 0o644,
            owner: (1000, 1000),
            size,
            modified: (0, 0),
            target: if is_file { b"" } else { text.as_bytes() },
            attributes: &[],
            comment: None,
        };
        entry.write(&mut bytes);
        bytes.extend_from_slice(contents);
        bytes.resize(bytes.len() + padding(size) as usize, 0);
    }
    end(&mut bytes);
    Whole(Some(bytes.into()))
}

async fn sandbox() -> Slow {
    let name = TemplateName::new("default").expect("a valid name");
    let template = Template::named(name);
    let spec = LaunchSpec::of(&template, InstanceId::from_u128(1));
    let runtime = FakeRuntime::default();
    let files = EngineFiles(runtime.launch(spec).await.expect("it starts"));
    Slow { files, _runtime: runtime }
}

const BOUNDS: Bounds = Bounds { entries: 100, bytes: 1000, unusual: Unusual::Refuse };

#[tokio::test(start_paused = true)]
async fn unpacked_files_do_not_wait_for_each_other() {
    let slow = sandbox().await;
    let names = ["a", "b", "c", "d", "e", "f"];
    let entries: Vec<_> = names.iter().map(|name| (Kind::File, *name, *name)).collect();
    let before = Instant::now();
    let unpacking = Unpacking::new(&slow, archive(&entries), "/workspace", BOUNDS);
    let done = unpacking.into_existing().run().await.expect("it is unpacked");
    assert_eq!(done.files, 6);
    // A second to begin each, and one for all to be confirmed.
    assert_eq!(before.elapsed().as_secs(), 7);
    for name in names {
        let found = slow.inside().read_all(&format!("/workspace/{name}"), 10).await;
        assert_eq!(found.expect("it is there"), name.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn unpacked_entries_find_the_files_before_them() {
    let slow = sandbox().await;
    let entries = [
        (Kind::File, "a", "old"),
        (Kind::File, "./a", "new"),
        (Kind::Hardlink, "b", "a"),
        (Kind::File, "c", "c"),
    ];
    let unpacking = Unpacking::new(&slow, archive(&entries), "/workspace", BOUNDS);
    unpacking.run().await.expect("it is unpacked");
    for (name, text) in [("a", "new"), ("b", "new"), ("c", "c")] {
        let found = slow.inside().read_all(&format!("/workspace/{name}"), 10).await;
        assert_eq!(found.expect("it is there"), text.as_bytes(), "{name}");
    }
}
