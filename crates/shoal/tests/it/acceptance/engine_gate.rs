//! A way to the engine that can be shut: whatever a server asks of it waits until it is opened
//! again. Nothing is lost and nothing is said meanwhile, as with an engine that is very slow.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

/// The way.
pub(crate) struct Gate {
    path: PathBuf,
    bar: Arc<Bar>,
}

#[derive(Default)]
struct Bar {
    shut: Mutex<bool>,
    moved: Condvar,
}

impl Bar {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.moved.notify_all();
    }

    fn pass(&self) {
        let shut = self.shut.lock().unwrap();
        drop(self.moved.wait_while(shut, |shut| *shut).unwrap());
    }
}

impl Gate {
    /// An open one, at `path`, to the engine at `engine`.
    pub(crate) fn to(engine: &Path, path: PathBuf) -> Self {
        let bar = Arc::new(Bar::default());
        let listener = UnixListener::bind(&path).unwrap();
        let (engine, known) = (engine.to_owned(), Arc::clone(&bar));
        // It ends with the test, as those do that it starts.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&engine) else { continue };
                let asked = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let bar = Arc::clone(&known);
                std::thread::spawn(move || carry(asked.0, asked.1, || bar.pass()));
                std::thread::spawn(move || carry(server, client, || ()));
            }
        });
        Self { path, bar }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn shut(&self) {
        self.bar.set(true);
    }

    pub(crate) fn open(&self) {
        self.bar.set(false);
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream, pass: impl Fn()) {
    let mut piece = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        pass();
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Read), to.shutdown(Shutdown::Write));
}
