//! The root directory of a target that works with real files: `FUZZ_ROOT`, which becomes `/` and
//! which `fuzz/run.sh` makes. It contains `/workspace`, owned by user 65534, `/proc`, `/dev/null`,
//! and `/secret`, owned by root.

/// The contents of `/secret`.
pub(crate) const SECRET: &str = "only root may read this\n";

/// Enters it. Not if this process only starts others that do, to compare what they reach.
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
