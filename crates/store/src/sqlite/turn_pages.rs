//! How turns and their pieces are read: by id, by session, by turn and number. Only selected rows
//! are read, and the size of a page is bounded.

use model::TurnId;
use model::turn::{TurnPiece, TurnRecord};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::error::at;
use super::json_lines;
use super::sealed_fields::join_turn;
use super::tables::read;
use super::turns::key;
use crate::contract::TurnQuery;
use crate::error::StoreError;
use crate::turns::{PAGE_BYTES, shown_bytes};
use sealing::NodeKey;

/// A turn.
pub(super) fn turn(
    conn: &Connection,
    node_key: &NodeKey,
    turn: TurnId,
) -> Result<Option<TurnRecord>, StoreError> {
    let step = at("read a turn");
    let sql = "SELECT number, record, started, over, sealed FROM turns WHERE id = ?1";
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let mut rows = select.query([key(turn)]).map_err(&step)?;
    rows.next().map_err(&step)?.map(|row| record(row, node_key)).transpose()
}

/// Turns of a session.
pub(super) fn turns(
    conn: &Connection,
    node_key: &NodeKey,
    query: &TurnQuery,
) -> Result<Vec<TurnRecord>, StoreError> {
    let step = at("read turns");
    let sql = "SELECT number, record, started, over, sealed FROM turns \
               WHERE session = ?1 AND number > ?2 ORDER BY number LIMIT ?3";
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let session = query.session.as_u128().to_be_bytes();
    let mut rows =
        select.query(params![session, signed(query.after), query.limit]).map_err(&step)?;
    let (mut turns, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES as u64
        && let Some(row) = rows.next().map_err(&step)?
    {
        let record = record(row, node_key)?;
        bytes += shown_bytes(&record);
        turns.push(record);
    }
    Ok(turns)
}

/// The pieces of a turn.
pub(super) fn pieces(
    conn: &Connection,
    turn: TurnId,
    after: u64,
    limit: u32,
) -> Result<Vec<TurnPiece>, StoreError> {
    let step = at("read the pieces of a turn");
    let sql = "SELECT coalesce(shows, number) FROM turns WHERE id = ?1";
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let shown: Option<i64> =
        select.query_row([key(turn)], |row| row.get(0)).optional().map_err(&step)?;
    let Some(shown) = shown else { return Ok(Vec::new()) };
    let sql = "SELECT last, lines FROM pieces WHERE turn = ?1 AND last > ?2 ORDER BY last";
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let mut blocks = select.query(params![shown, signed(after)]).map_err(&step)?;
    let (mut pieces, mut bytes): (Vec<TurnPiece>, u64) = (Vec::new(), 0);
    while pieces.len() < limit as usize
        && bytes < PAGE_BYTES as u64
        && let Some(block) = blocks.next().map_err(&step)?
    {
        let last = block.get(0).map_err(&step)?;
        let text = block.get_ref(1).and_then(|text| Ok(text.as_bytes()?)).map_err(&step)?;
        for line in json_lines::all(text) {
            if pieces.len() == limit as usize || bytes >= PAGE_BYTES as u64 {
                break;
            }
            let piece: TurnPiece = read("pieces", last, line)?;
            if piece.seq > after {
                bytes += line.len() as u64 + 1;
                pieces.push(piece);
            }
        }
    }
    Ok(pieces)
}

/// A record from its row: the message is written once, the outcome beside it.
fn record(row: &Row<'_>, node_key: &NodeKey) -> Result<TurnRecord, StoreError> {
    let step = at("read a turn");
    let number: i64 = row.get(0).map_err(&step)?;
    let text = |column| row.get::<_, Option<String>>(column).map_err(&step);
    let mut record: TurnRecord = read("turns", number, text(1)?.unwrap_or_default())?;
    let sealed = row.get_ref(4).and_then(|sealed| Ok(sealed.as_blob_or_null()?));
    join_turn(node_key, number, &mut record, sealed.map_err(&step)?)?;
    record.number = number.cast_unsigned();
    if let Some(start) = text(2)? {
        record.started = Some(read("turns", number, start)?);
    }
    if let Some(end) = text(3)? {
        record.end = Some(read("turns", number, end)?);
    }
    Ok(record)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
