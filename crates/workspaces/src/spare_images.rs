//! Spare images: formatted before they are needed, so that no launch waits for `mkfs`. The first
//! image of a size is made on request; from then on a few of that size are kept.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::directory::Size;
use crate::hard_limits::make_image;
use crate::layout::{Layout, discard, move_to};

/// How many spares of a size are kept.
const OF_A_SIZE: usize = 4;

/// How many sizes are kept; the least recently requested one goes first.
const SIZES: usize = 4;

/// How many requests may wait. A further one adds no information.
const REQUESTS_MAX: usize = 16;

/// The spare images.
pub(crate) struct SpareImages {
    stock: Arc<SpareStock>,
    requests: Option<SyncSender<Size>>,
}

struct SpareStock {
    layout: Arc<Layout>,
    /// Least recently requested first.
    sizes: Mutex<Vec<(Size, Vec<String>)>>,
    stopped: AtomicBool,
}

impl SpareImages {
    pub(crate) fn start(layout: Arc<Layout>) -> io::Result<Self> {
        let stock = Arc::new(SpareStock {
            layout,
            sizes: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let (requests, asked) = sync_channel(REQUESTS_MAX);
        let filled = Arc::clone(&stock);
        std::thread::Builder::new()
            .name("spare-images".to_owned())
            .spawn(move || filled.fill(&asked))?;
        Ok(Self { stock, requests: Some(requests) })
    }

    /// Gives a spare of this size its name among the workspaces. False if there is none.
    pub(crate) fn take(&self, size: Size, name: &str) -> io::Result<bool> {
        let spare = self.stock.take(size);
        if let Some(requests) = &self.requests {
            match requests.try_send(size) {
                Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
            }
        }
        let Some(spare) = spare else { return Ok(false) };
        let layout = &self.stock.layout;
        match move_to(&layout.spares, &spare, &layout.top, name) {
            Ok(()) => Ok(true),
            // An operator removed it; the caller makes another one.
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for SpareImages {
    fn drop(&mut self) {
        self.stock.stopped.store(true, Ordering::Relaxed);
        // Without a sender the thread ends.
        self.requests = None;
    }
}

impl SpareStock {
    fn sizes(&self) -> MutexGuard<'_, Vec<(Size, Vec<String>)>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, size: Size) -> Option<String> {
        let mut sizes = self.sizes();
        let at = sizes.iter().position(|(known, _)| *known == size)?;
        let (_, mut spares) = sizes.remove(at);
        let spare = spares.pop();
        sizes.push((size, spares));
        spare
    }

    /// Makes spares until all senders are gone.
    fn fill(&self, asked: &Receiver<Size>) {
        while let Ok(size) = asked.recv() {
            let unwanted = self.make_room(size);
            for name in unwanted {
                discard(&self.layout.spares, &name);
            }
            while !self.stopped.load(Ordering::Relaxed) && self.count(size) < OF_A_SIZE {
                let name = self.layout.new_name();
                let ready = make_image(&self.layout, &name, size).and_then(|()| {
                    Ok(move_to(&self.layout.new, &name, &self.layout.spares, &name)?)
                });
                if ready.is_err() {
                    // A caller that needs one makes it itself, and gets the error.
                    discard(&self.layout.new, &name);
                    break;
                }
                self.put(size, name);
            }
        }
    }

    fn count(&self, size: Size) -> usize {
        self.sizes().iter().find(|(known, _)| *known == size).map_or(0, |(_, all)| all.len())
    }

    fn put(&self, size: Size, name: String) {
        if let Some((_, all)) = self.sizes().iter_mut().find(|(known, _)| *known == size) {
            all.push(name);
        }
    }

    /// Adds this size. Returns the spares of the size that was dropped for it.
    fn make_room(&self, size: Size) -> Vec<String> {
        let mut sizes = self.sizes();
        if sizes.iter().any(|(known, _)| *known == size) {
            return Vec::new();
        }
        let unwanted = if sizes.len() < SIZES { Vec::new() } else { sizes.remove(0).1 };
        sizes.push((size, Vec::new()));
        unwanted
    }
}
