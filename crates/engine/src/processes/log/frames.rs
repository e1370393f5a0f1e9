//! Pieces of a log as bytes, for files and for the store: a header, then the output. Pure. A piece
//! that a crash cut off is not read, and no length is trusted beyond the bytes that exist.

use bytes::Bytes;
use model::Wall;
use model::process::LogExtent;

use super::end_of;
use crate::processes::requests::LogPiece;

/// The header of a piece: offset, bytes of the output before it, time, length, which output.
const HEAD_BYTES: usize = 8 + 8 + 8 + 4 + 1;
/// Adjacent pieces of one output are joined up to this size.
const JOINED_BYTES_MAX: usize = 64 * 1024;
/// And if they came within this time.
const JOINED_MS_MAX: u64 = 100;
/// The longest piece that is accepted.
const PIECE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Encodes adjacent pieces. `stdout_bytes` is the length of the output before the first.
pub(in crate::processes) fn encode(pieces: &[LogPiece], mut stdout_bytes: u64, into: &mut Vec<u8>) {
    let mut rest = pieces;
    while let Some((first, after)) = rest.split_first() {
        let mut bytes = first.bytes.len();
        let mut next = end_of(first);
        let joined = after.iter().take_while(|piece| {
            bytes += piece.bytes.len();
            let follows = piece.offset == next;
            next = end_of(piece);
            follows
                && piece.stderr == first.stderr
                && bytes <= JOINED_BYTES_MAX
                && piece.at.0.saturating_sub(first.at.0) <= JOINED_MS_MAX
        });
        let (frame, others) = rest.split_at(1 + joined.count());
        rest = others;
        let length: usize = frame.iter().map(|piece| piece.bytes.len()).sum();
        into.extend_from_slice(&first.offset.to_le_bytes());
        into.extend_from_slice(&stdout_bytes.to_le_bytes());
        into.extend_from_slice(&first.at.0.to_le_bytes());
        into.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        into.push(first.stderr.into());
        for piece in frame {
            into.extend_from_slice(&piece.bytes);
        }
        if !first.stderr {
            stdout_bytes += length as u64;
        }
    }
}

/// Decoded pieces.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::processes) struct Decoded {
    pub(in crate::processes) pieces: Vec<LogPiece>,
    /// The extent of the whole log, as its last piece says.
    pub(in crate::processes) extent: LogExtent,
}

/// Decodes complete pieces.
pub(in crate::processes) fn decode(bytes: &Bytes) -> Decoded {
    let mut found = Decoded::default();
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + HEAD_BYTES) {
        let number = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&head[from..from + 8]);
            u64::from_le_bytes(word)
        };
        let mut length = [0; 4];
        length.copy_from_slice(&head[24..28]);
        let length = u32::from_le_bytes(length) as usize;
        let from = at + HEAD_BYTES;
        let (offset, stdout_bytes, stderr) = (number(0), number(8), head[28] != 0);
        let in_order = offset >= found.extent.end && stdout_bytes <= offset;
        if length > PIECE_BYTES_MAX || !in_order || bytes.len() - from < length {
            break;
        }
        let piece = LogPiece {
            offset,
            stderr,
            at: Wall(number(16)),
            bytes: bytes.slice(from..from + length),
        };
        let Some(end) = offset.checked_add(length as u64) else { break };
        if found.pieces.is_empty() {
            found.extent.first = offset;
        }
        found.extent.end = end;
        found.extent.stdout_bytes = stdout_bytes + if stderr { 0 } else { length as u64 };
        found.extent.stderr_bytes = end - found.extent.stdout_bytes;
        found.pieces.push(piece);
        at = from + length;
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces(of: &[(bool, u64, Vec<u8>)]) -> Vec<LogPiece> {
        let mut offset = 0;
        let piece = |(stderr, at, bytes): &(bool, u64, Vec<u8>)| {
            let bytes = Bytes::copy_from_slice(bytes);
            let piece = LogPiece { offset, stderr: *stderr, at: Wall(*at), bytes };
            offset = end_of(&piece);
            piece
        };
        of.iter().map(piece).collect()
    }

    fn outputs(pieces: &[LogPiece]) -> (Vec<u8>, Vec<u8>) {
        let of = |stderr| {
            let of = pieces.iter().filter(|piece| piece.stderr == stderr);
            of.flat_map(|piece| piece.bytes.to_vec()).collect()
        };
        (of(false), of(true))
    }

    proptest! {
        #[test]
        fn log_frames_are_decoded_up_to_a_cut(
            of in prop::collection::vec(
                (any::<bool>(), 0_u64..300, prop::collection::vec(any::<u8>(), 1..50)), 0..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let pieces = pieces(&of);
            let mut bytes = Vec::new();
            encode(&pieces, 0, &mut bytes);
            let whole = decode(&bytes.clone().into());
            prop_assert_eq!(outputs(&whole.pieces), outputs(&pieces));
            let (stdout, stderr) = outputs(&pieces);
            let counted = (whole.extent.stdout_bytes, whole.extent.stderr_bytes);
            prop_assert_eq!(counted, (stdout.len() as u64, stderr.len() as u64));
            bytes.truncate(cut.index(bytes.len() + 1));
            let part = decode(&bytes.into());
            prop_assert_eq!(&part.pieces[..], &whole.pieces[..part.pieces.len()]);
        }

        #[test]
        fn log_frames_of_any_bytes_are_decoded_without_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let found = decode(&bytes.into());
            prop_assert!(found.extent.first <= found.extent.end);
        }
    }

    #[test]
    fn log_frames_join_small_pieces_of_one_output() {
        let one = |stderr, at| (stderr, at, vec![b'x'; 10]);
        let far = [one(false, 0), one(false, 50), one(true, 60), one(false, 61), one(false, 500)];
        let mut bytes = Vec::new();
        encode(&pieces(&far), 0, &mut bytes);
        let lengths: Vec<_> =
            decode(&bytes.into()).pieces.iter().map(|piece| piece.bytes.len()).collect();
        assert_eq!(lengths, [20, 10, 10, 10]);
    }
}
