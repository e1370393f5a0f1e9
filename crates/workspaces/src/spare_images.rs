//! Images that are ready before they are needed, so that no launch waits for `mkfs`. The first of
//! a size is made when it is asked for; from then on a few of that size are kept.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::directory::Size;
use crate::hard_limits::make_image;
use crate::layout::{Places, discard, move_to};

/// How many of a size.
const OF_A_SIZE: usize = 4;

/// How many sizes; those of the size that nobody asked for longest go.
const SIZES: usize = 4;

/// Wishes that may wait to be looked at. One more says nothing new.
const WISHES: usize = 16;

/// The spares.
pub(crate) struct Spares {
    shelf: Arc<Shelf>,
    wishes: Option<SyncSender<Size>>,
}

struct Shelf {
    places: Arc<Places>,
    /// Least recently wanted first.
    sizes: Mutex<Vec<(Size, Vec<String>)>>,
    stopped: AtomicBool,
}

impl Spares {
    pub(crate) fn start(places: Arc<Places>) -> io::Result<Self> {
        let shelf =
            Arc::new(Shelf { places, sizes: Mutex::default(), stopped: AtomicBool::new(false) });
        let (wishes, asked) = sync_channel(WISHES);
        let filled = Arc::clone(&shelf);
        std::thread::Builder::new()
            .name("spare-images".to_owned())
            .spawn(move || filled.fill(&asked))?;
        Ok(Self { shelf, wishes: Some(wishes) })
    }

    /// Gives a spare of this size its name among the workspaces. False if there is none.
    pub(crate) fn take(&self, size: Size, name: &str) -> io::Result<bool> {
        let spare = self.shelf.take(size);
        if let Some(wishes) = &self.wishes {
            match wishes.try_send(size) {
                Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
            }
        }
        let Some(spare) = spare else { return Ok(false) };
        let places = &self.shelf.places;
        match move_to(&places.spares, &spare, &places.top, name) {
            Ok(()) => Ok(true),
            // Somebody cleaned up; another one is made.
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        self.shelf.stopped.store(true, Ordering::Relaxed);
        // Nobody wishes for anything any more, and the thread ends by that.
        self.wishes = None;
    }
}

impl Shelf {
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

    /// Makes what is wished for, until nobody can wish any more.
    fn fill(&self, asked: &Receiver<Size>) {
        while let Ok(size) = asked.recv() {
            let unwanted = self.make_room(size);
            for name in unwanted {
                discard(&self.places.spares, &name);
            }
            while !self.stopped.load(Ordering::Relaxed) && self.count(size) < OF_A_SIZE {
                let name = self.places.new_name();
                let ready = make_image(&self.places, &name, size).and_then(|()| {
                    Ok(move_to(&self.places.new, &name, &self.places.spares, &name)?)
                });
                if ready.is_err() {
                    // Whoever needs one makes it himself, and is told why he cannot.
                    discard(&self.places.new, &name);
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

    /// A place for this size; gives back the spares of another that had to give way.
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
