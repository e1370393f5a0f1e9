//! Sparse files: where the stored bytes belong.

use crate::BLOCK;
use crate::error::TarError;
use crate::header::number;
use crate::pax::decimal;

/// The most regions of one file.
const REGIONS_MAX: usize = 1 << 20;

/// Stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Their position.
    pub offset: u64,
    /// Their length.
    pub length: u64,
}

/// A sparse file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sparse {
    /// Its size, holes included.
    pub real_size: u64,
    /// The stored regions, in order.
    pub regions: Vec<Region>,
}

impl Sparse {
    /// Checks that a map fits the file and its stored bytes.
    pub(crate) fn checked(
        real_size: u64,
        regions: Vec<Region>,
        stored: u64,
    ) -> Result<Self, TarError> {
        let end = regions.last().map_or(0, |last| last.offset + last.length);
        // Regions do not overlap, so their sum is not larger than their end.
        let sum: u64 = regions.iter().map(|region| region.length).sum();
        if end > real_size || sum != stored {
            return Err(Self::wrong());
        }
        Ok(Self { real_size, regions })
    }

    pub(crate) fn wrong() -> TarError {
        TarError::broken("the map of a sparse file does not fit the file")
    }
}

/// Adds a region, which must follow those before it.
pub(crate) fn add(regions: &mut Vec<Region>, region: Region) -> Result<(), TarError> {
    if regions.len() >= REGIONS_MAX {
        return Err(TarError::TooLarge(format!("a file has more than {REGIONS_MAX} holes").into()));
    }
    let begin = regions.last().map_or(0, |last| last.offset + last.length);
    if region.offset < begin || region.offset.checked_add(region.length).is_none() {
        return Err(Sparse::wrong());
    }
    regions.push(region);
    Ok(())
}

/// The map that GNU tar puts into the header itself, the size of the file, and whether the map
/// continues in the next block.
pub(crate) fn from_header(header: &[u8; BLOCK]) -> Result<(u64, Vec<Region>, bool), TarError> {
    let real_size = field(&header[483..495]).ok_or_else(Sparse::wrong)?;
    let mut regions = Vec::new();
    add_fields(&mut regions, &header[386..482])?;
    Ok((real_size, regions, header[482] != 0))
}

/// More of it, and whether it still continues.
pub(crate) fn from_more(block: &[u8; BLOCK], regions: &mut Vec<Region>) -> Result<bool, TarError> {
    add_fields(regions, &block[..504])?;
    Ok(block[504] != 0)
}

fn add_fields(regions: &mut Vec<Region>, fields: &[u8]) -> Result<(), TarError> {
    for pair in fields.as_chunks::<24>().0 {
        // The unused fields are empty.
        if pair[0] == 0 {
            break;
        }
        let offset = field(&pair[..12]).ok_or_else(Sparse::wrong)?;
        let length = field(&pair[12..]).ok_or_else(Sparse::wrong)?;
        add(regions, Region { offset, length })?;
    }
    Ok(())
}

fn field(bytes: &[u8]) -> Option<u64> {
    number(bytes).and_then(|n| u64::try_from(n).ok())
}

/// Longer than any number of a map.
const DIGITS_MAX: usize = 20;

/// The map before the contents: numbers, one per line, in whole blocks.
#[derive(Debug, Default)]
pub(crate) struct DataMap {
    pub(crate) regions: Vec<Region>,
    /// How many regions are missing, once the map has said so.
    missing: Option<u64>,
    offset: Option<u64>,
    digits: Vec<u8>,
}

impl DataMap {
    /// Takes the next block. Returns whether the map is complete: the rest of the block is padding.
    pub(crate) fn is_whole_with(&mut self, block: &[u8; BLOCK]) -> Result<bool, TarError> {
        for &byte in block {
            if byte != b'\n' {
                if self.digits.len() == DIGITS_MAX {
                    return Err(Sparse::wrong());
                }
                self.digits.push(byte);
                continue;
            }
            let number = decimal(&self.digits).ok_or_else(Sparse::wrong)?;
            self.digits.clear();
            if self.is_whole_with_number(number)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_whole_with_number(&mut self, number: u64) -> Result<bool, TarError> {
        let Some(missing) = self.missing else {
            self.missing = Some(number);
            return Ok(number == 0);
        };
        let Some(offset) = self.offset.take() else {
            self.offset = Some(number);
            return Ok(false);
        };
        add(&mut self.regions, Region { offset, length: number })?;
        self.missing = Some(missing - 1);
        Ok(missing == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_sparse_maps_are_refused() {
        let region = |offset, length| Region { offset, length };
        let mut regions = Vec::new();
        add(&mut regions, region(0, 10)).unwrap();
        assert!(add(&mut regions, region(9, 1)).is_err(), "overlaps");
        assert!(add(&mut regions, region(u64::MAX, 1)).is_err(), "overflows");
        add(&mut regions, region(10, 0)).unwrap();
        add(&mut regions, region(20, 5)).unwrap();
        assert!(Sparse::checked(25, regions.clone(), 15).is_ok());
        assert!(Sparse::checked(24, regions.clone(), 15).is_err(), "behind the end");
        assert!(Sparse::checked(25, regions, 16).is_err(), "more is stored");
    }

    fn block(text: &[u8]) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..text.len()].copy_from_slice(text);
        block
    }

    #[test]
    fn a_sparse_map_in_the_contents_is_read_block_by_block() {
        let mut map = DataMap::default();
        assert!(map.is_whole_with(&block(b"2\n0\n5\n512\n7\n")).unwrap());
        assert_eq!(map.regions.len(), 2);
        let mut map = DataMap::default();
        let begin = [b"200\n".to_vec(), b"0\n0\n".repeat(127)].concat();
        assert!(!map.is_whole_with(&block(&begin)).unwrap(), "73 are missing");
        assert!(map.is_whole_with(&block(&b"0\n0\n".repeat(73))).unwrap());
        for bad in [&b"x\n"[..], b"99999999999999999999999999\n", b"1\n5\n\n", b"1\n-1\n"] {
            assert!(
                DataMap::default().is_whole_with(&block(bad)).is_err(),
                "{}",
                bad.escape_ascii()
            );
        }
        // The zeros that fill a block are not part of a number that continues.
        let mut unfinished = DataMap::default();
        assert!(unfinished.is_whole_with(&block(b"2\n0\n")).is_err());
    }
}
