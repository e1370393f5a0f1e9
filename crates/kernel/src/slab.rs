//! A vector with reusable positions, so that an item is found by a small index without a search. An
//! index is valid while its item exists; using it later is a bug and panics instead of finding
//! another item. An index of one type of item never leads to another type: that does not compile.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// The index of an item in its slab, counted from one, so that an `Option` of it has the same size.
pub(crate) struct SlabIndex<T>(NonZeroU32, PhantomData<fn() -> T>);

impl<T> SlabIndex<T> {
    fn of(number: usize) -> Self {
        let counted = NonZeroU32::MIN.saturating_add(number as u32);
        Self(counted, PhantomData)
    }

    const fn number(self) -> usize {
        self.0.get() as usize - 1
    }
}

// By hand, because an index can be copied and compared even if its item cannot.

impl<T> Clone for SlabIndex<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SlabIndex<T> {}

impl<T> PartialEq for SlabIndex<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for SlabIndex<T> {}

impl<T> PartialOrd for SlabIndex<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for SlabIndex<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl<T> fmt::Debug for SlabIndex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

/// Items by index.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<SlabIndex<T>>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, thing: T) -> SlabIndex<T> {
        if let Some(index) = self.free.pop() {
            self.places[index.number()] = Some(thing);
            index
        } else {
            self.places.push(Some(thing));
            SlabIndex::of(self.places.len() - 1)
        }
    }

    pub(crate) fn remove(&mut self, index: SlabIndex<T>) -> T {
        let thing = self.places[index.number()].take().expect("a place is given up once");
        self.free.push(index);
        thing
    }

    pub(crate) fn get(&self, index: SlabIndex<T>) -> Option<&T> {
        self.places.get(index.number())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: SlabIndex<T>) -> Option<&mut T> {
        self.places.get_mut(index.number())?.as_mut()
    }

    /// All items, in the order of their indexes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlabIndex<T>, &T)> {
        let all = self.places.iter().enumerate();
        all.filter_map(|(number, thing)| Some((SlabIndex::of(number), thing.as_ref()?)))
    }

    /// All indexes in use, so that items may change or be removed during the loop.
    pub(crate) fn indices(&self) -> Vec<SlabIndex<T>> {
        self.iter().map(|(index, _)| index).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl<T> Index<SlabIndex<T>> for Slab<T> {
    type Output = T;

    fn index(&self, index: SlabIndex<T>) -> &T {
        self.places[index.number()].as_ref().expect("a place is used while its thing exists")
    }
}

impl<T> IndexMut<SlabIndex<T>> for Slab<T> {
    fn index_mut(&mut self, index: SlabIndex<T>) -> &mut T {
        self.places[index.number()].as_mut().expect("a place is used while its thing exists")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_indexes_are_reused_and_counted() {
        let mut slab = Slab::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!((slab.len(), slab[a], slab[b]), (2, 'a', 'b'));
        assert_eq!(slab.remove(a), 'a');
        assert_eq!((slab.len(), slab.get(a)), (1, None));
        assert_eq!(slab.insert('c'), a);
        assert_eq!(slab.indices(), [a, b]);
        *slab.get_mut(b).unwrap() = 'd';
        assert_eq!(slab.iter().map(|(_, c)| *c).collect::<String>(), "cd");
    }

    #[test]
    fn slab_index_has_the_same_size_as_an_option_of_it() {
        assert_eq!(size_of::<Option<SlabIndex<String>>>(), size_of::<u32>());
    }
}
