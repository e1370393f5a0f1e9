//! The place of its own in which a target works with real files: `FUZZ_ROOT`, a directory that becomes
//! `/` and that `fuzz/run.sh` makes, with `/workspace` in it that belongs to user 65534, `/proc`,
//! `/dev/null`, and `/secret` that is root's.

/// What `/secret` says.
pub(crate) const SECRET: &str = "nobody reads this\n";

/// Goes there. Not if this process only starts others that do, to compare what they reach.
pub(crate) fn enter() -> bool {
    let starts_others = |word: String| word.starts_with("-set_cover_merge=");
    if std::env::args().any(starts_others) {
        return false;
    }
    let root = std::env::var("FUZZ_ROOT").expect("start it with fuzz/run.sh");
    rustix::process::chroot(&root).expect("its own root");
    std::env::set_current_dir("/workspace").expect("a workspace");
    true
}
