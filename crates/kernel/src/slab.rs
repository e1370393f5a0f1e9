//! Where things live: a vector with reusable places, so that a thing is found by a small number
//! without a search. A number is only held while its thing exists; using one after that is a bug,
//! and panics rather than finding something else.

use std::ops::{Index, IndexMut};

/// The place of a thing in its slab.
pub(crate) type Ix = u32;

/// Things by place.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<Ix>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, thing: T) -> Ix {
        if let Some(ix) = self.free.pop() {
            self.places[ix as usize] = Some(thing);
            ix
        } else {
            self.places.push(Some(thing));
            (self.places.len() - 1) as Ix
        }
    }

    pub(crate) fn remove(&mut self, ix: Ix) -> T {
        let thing = self.places[ix as usize].take().expect("a place is given up once");
        self.free.push(ix);
        thing
    }

    pub(crate) fn get(&self, ix: Ix) -> Option<&T> {
        self.places.get(ix as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, ix: Ix) -> Option<&mut T> {
        self.places.get_mut(ix as usize)?.as_mut()
    }

    /// All things, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ix, &T)> {
        self.places.iter().enumerate().filter_map(|(ix, place)| Some((ix as Ix, place.as_ref()?)))
    }

    /// All places in use, so that things may change or go while they are visited.
    pub(crate) fn places(&self) -> Vec<Ix> {
        self.iter().map(|(ix, _)| ix).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl<T> Index<Ix> for Slab<T> {
    type Output = T;

    fn index(&self, ix: Ix) -> &T {
        self.places[ix as usize].as_ref().expect("a place is used while its thing exists")
    }
}

impl<T> IndexMut<Ix> for Slab<T> {
    fn index_mut(&mut self, ix: Ix) -> &mut T {
        self.places[ix as usize].as_mut().expect("a place is used while its thing exists")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_reused_and_counted() {
        let mut slab = Slab::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!((slab.len(), slab[a], slab[b]), (2, 'a', 'b'));
        assert_eq!(slab.remove(a), 'a');
        assert_eq!((slab.len(), slab.get(a)), (1, None));
        assert_eq!(slab.insert('c'), a);
        assert_eq!(slab.places(), [a, b]);
        *slab.get_mut(b).unwrap() = 'd';
        assert_eq!(slab.iter().map(|(_, c)| *c).collect::<String>(), "cd");
    }
}
