//! All pools, by the name of their template. A name never leads to two pools, nor to one that is
//! gone.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use model::TemplateName;

use crate::pool::{Pool, PoolIx};
use crate::slab::Slab;

/// All pools.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    slab: Slab<Pool>,
    by_name: BTreeMap<TemplateName, PoolIx>,
}

impl Pools {
    pub(crate) fn insert(&mut self, known: Pool) -> PoolIx {
        let name = known.template.name.clone();
        let pool = self.slab.insert(known);
        self.by_name.insert(name, pool);
        pool
    }

    pub(crate) fn remove(&mut self, pool: PoolIx) -> Pool {
        let known = self.slab.remove(pool);
        self.by_name.remove(&known.template.name);
        known
    }

    pub(crate) fn named(&self, name: &TemplateName) -> Option<PoolIx> {
        self.by_name.get(name).copied()
    }

    /// All pools, by name.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = &Pool> {
        self.by_name.values().map(|pool| &self.slab[*pool])
    }

    pub(crate) fn get(&self, pool: PoolIx) -> Option<&Pool> {
        self.slab.get(pool)
    }

    pub(crate) fn get_mut(&mut self, pool: PoolIx) -> Option<&mut Pool> {
        self.slab.get_mut(pool)
    }

    /// All pools, in the order of their indexes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolIx, &Pool)> {
        self.slab.iter()
    }

    /// All indexes in use, so that pools may change or be removed during the loop.
    pub(crate) fn indices(&self) -> Vec<PoolIx> {
        self.slab.indices()
    }
}

impl Index<PoolIx> for Pools {
    type Output = Pool;

    #[inline]
    fn index(&self, pool: PoolIx) -> &Pool {
        &self.slab[pool]
    }
}

impl IndexMut<PoolIx> for Pools {
    #[inline]
    fn index_mut(&mut self, pool: PoolIx) -> &mut Pool {
        &mut self.slab[pool]
    }
}
