//! Files with holes: where the bytes that are there belong.

use std::io::BufRead;

use crate::error::{ImageError, ImageErrorCode};
use crate::tar::header::{BLOCK, number};
use crate::tar::pax;

/// Most pieces of one file.
const REGIONS_MAX: usize = 1 << 20;

/// Bytes that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A file with holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sparse {
    /// Its size, holes included.
    pub(crate) real_size: u64,
    /// What is there, in order.
    pub(crate) regions: Vec<Region>,
}

impl Sparse {
    /// Checks that a map fits the file and what is stored of it.
    pub(super) fn checked(
        real_size: u64,
        regions: Vec<Region>,
        stored: u64,
    ) -> Result<Self, ImageError> {
        let end = regions.last().map_or(0, |last| last.offset + last.length);
        let sum: u64 = regions.iter().map(|region| region.length).sum();
        if end > real_size || sum != stored {
            return Err(wrong());
        }
        Ok(Self { real_size, regions })
    }
}

fn wrong() -> ImageError {
    ImageError::broken("the map of a file with holes does not fit the file")
}

/// Adds a region that must lie behind those before it.
pub(super) fn add(regions: &mut Vec<Region>, region: Region) -> Result<(), ImageError> {
    if regions.len() >= REGIONS_MAX {
        let cause = format!("a file has more than {REGIONS_MAX} holes");
        return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
    }
    let begin = regions.last().map_or(0, |last| last.offset + last.length);
    if region.offset < begin || region.offset.checked_add(region.length).is_none() {
        return Err(wrong());
    }
    regions.push(region);
    Ok(())
}

/// The map that GNU tar puts into the header itself and into blocks behind it.
pub(super) fn from_blocks(
    header: &[u8; BLOCK],
    mut next: impl FnMut() -> Result<[u8; BLOCK], ImageError>,
) -> Result<(u64, Vec<Region>), ImageError> {
    let real_size = field(&header[483..495]).ok_or_else(wrong)?;
    let mut regions = Vec::new();
    add_fields(&mut regions, &header[386..482])?;
    let mut more = header[482] != 0;
    while more {
        let block = next()?;
        add_fields(&mut regions, &block[..504])?;
        more = block[504] != 0;
    }
    Ok((real_size, regions))
}

fn add_fields(regions: &mut Vec<Region>, fields: &[u8]) -> Result<(), ImageError> {
    for pair in fields.as_chunks::<24>().0 {
        // The unused ones are empty.
        if pair[0] == 0 {
            break;
        }
        let offset = field(&pair[..12]).ok_or_else(wrong)?;
        let length = field(&pair[12..]).ok_or_else(wrong)?;
        add(regions, Region { offset, length })?;
    }
    Ok(())
}

fn field(bytes: &[u8]) -> Option<u64> {
    number(bytes).and_then(|n| u64::try_from(n).ok())
}

/// The map that stands before the contents, as lines. Says how many bytes it took.
pub(super) fn from_data(reader: &mut impl BufRead) -> Result<(u64, Vec<Region>), ImageError> {
    let mut taken = 0;
    let mut line = Vec::new();
    let mut next = || {
        line.clear();
        // Longer than any number, and never the whole contents.
        let read = std::io::Read::take(&mut *reader, 24)
            .read_until(b'\n', &mut line)
            .map_err(|error| ImageError::read("a map of holes", error))?;
        taken += read as u64;
        line.strip_suffix(b"\n").and_then(pax::decimal).ok_or_else(wrong)
    };
    let count = next()?;
    let mut regions = Vec::new();
    for _ in 0..count {
        let (offset, length) = (next()?, next()?);
        add(&mut regions, Region { offset, length })?;
    }
    Ok((taken, regions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_that_lie_are_refused() {
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

    #[test]
    fn a_map_in_the_contents_is_read_line_by_line() {
        let mut data = &b"2\n0\n5\n512\n7\nrest"[..];
        let (taken, regions) = from_data(&mut data).unwrap();
        assert_eq!((taken, regions.len(), data), (12, 2, &b"rest"[..]));
        for mut bad in [&b"2\n0\n"[..], b"x\n", b"99999999999999999999999999\n", b""] {
            assert!(from_data(&mut bad).is_err());
        }
    }
}
