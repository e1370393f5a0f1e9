//! The scale file, as programs and the host see it.

use tokio::time::timeout;

use super::stage::{PATIENCE, said};
use super::{CaseResult, Stage};
use crate::scale::ScaleNotes;
use model::InstanceId;

/// Takes notes until this is what a sandbox said, and says which note that was.
async fn until(notes: &mut ScaleNotes, instance: InstanceId, expected: (u32, bool)) -> u64 {
    let mut dropped = false;
    let wait = async {
        loop {
            let (of, note) = notes.next().await.expect("it is not over");
            assert_eq!(of, instance);
            dropped |= note.drops;
            if (note.scale, dropped) == expected {
                return note.seq;
            }
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{expected:?} is not reported"))
}

pub(super) async fn scale_file_is_counted_and_reported(stage: &Stage) -> CaseResult {
    let mut notes = stage.runtime.scale_notes();
    let sandbox = stage.launch().await;
    if !stage.runtime.capabilities().scale_file {
        // A write that changes nothing is not reported.
        let line = "echo ${SHOAL_SCALE_FILE-none} ${BLAXEL_SCALE_FILE-none}; ls -A /run/shoal";
        assert_eq!(said(&*sandbox, line).await, "none none\n");
        return Ok(());
    }
    let instance = sandbox.instance();
    assert_eq!(said(&*sandbox, "cat $SHOAL_SCALE_FILE").await, "=0\n");
    said(&*sandbox, "echo + > $SHOAL_SCALE_FILE; echo +2 > $BLAXEL_SCALE_FILE").await;
    assert_eq!(said(&*sandbox, "cat $BLAXEL_SCALE_FILE").await, "=3\n");
    until(&mut notes, instance, (3, false)).await;
    said(&*sandbox, "echo - >> $SHOAL_SCALE_FILE").await;
    let seen = until(&mut notes, instance, (2, false)).await;
    sandbox.inside().show_holds(5, seen).await.expect("shown");
    assert_eq!(said(&*sandbox, "cat $SHOAL_SCALE_FILE").await, "=7\n");
    said(&*sandbox, "echo =1 > $SHOAL_SCALE_FILE").await;
    let dropped = until(&mut notes, instance, (1, true)).await;
    assert!(dropped > seen);
    sandbox.inside().show_holds(5, seen).await.expect("of no use any more");
    assert_eq!(said(&*sandbox, "cat $SHOAL_SCALE_FILE").await, "=1\n");
    sandbox.inside().show_holds(2, dropped).await.expect("shown");
    assert_eq!(said(&*sandbox, "cat $SHOAL_SCALE_FILE").await, "=3\n");

    let fresh = stage.launch().await;
    assert_eq!(said(&*fresh, "cat $SHOAL_SCALE_FILE").await, "=0\n", "each has its own");
    stage.runtime.shutdown().await.expect("shut down");
    let over = async { while notes.next().await.is_some() {} };
    timeout(PATIENCE, over).await.expect("the notes end with the runtime");
    Ok(())
}
