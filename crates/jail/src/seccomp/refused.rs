//! Calls that exist and that no sandbox may make. A call is listed here, and not just left out,
//! where `EPERM` is the honest answer: programs then know that it is a matter of permission and do
//! not try older calls. Listing it also shows that it was considered.

use super::{Call, Group, Rule, Verdict, calls};

const REFUSED: Rule = Rule::Always(Verdict::PERM);

/// The groups.
pub const GROUPS: &[Group] = &[
    Group {
        name: "mounts",
        why: "The mount table is the sandbox's wall.",
        rule: REFUSED,
        calls: calls![
            SYS_mount,
            SYS_umount2,
            SYS_pivot_root,
            SYS_chroot,
            SYS_open_tree,
            SYS_move_mount,
            SYS_fsopen,
            SYS_fsconfig,
            SYS_fsmount,
            SYS_fspick,
            SYS_mount_setattr,
        ],
    },
    Group {
        name: "mounts, recent",
        why: "As above.",
        rule: REFUSED,
        calls: &[Call::recent("open_tree_attr", 467)],
    },
    Group {
        name: "namespaces",
        why: "Another namespace is another sandbox, or none.",
        rule: REFUSED,
        calls: calls![SYS_setns, SYS_unshare],
    },
    Group {
        name: "structured clone",
        why: "Its flags are behind a pointer, where a filter cannot see them. ENOSYS makes every C \
              library fall back to clone.",
        rule: Rule::Always(Verdict::NOSYS),
        calls: calls![SYS_clone3],
    },
    Group {
        name: "other processes",
        why: "Reading and changing what runs beside: the guest must be out of reach even if a uid or \
              a dumpable flag were wrong.",
        rule: REFUSED,
        calls: calls![
            SYS_ptrace,
            SYS_process_vm_readv,
            SYS_process_vm_writev,
            SYS_process_madvise,
            SYS_pidfd_getfd,
            SYS_kcmp,
        ],
    },
    Group {
        name: "memory placement",
        why: "Decides on which memory node pages are, also those of other processes.",
        rule: REFUSED,
        calls: calls![
            SYS_mbind,
            SYS_set_mempolicy,
            SYS_set_mempolicy_home_node,
            SYS_migrate_pages,
            SYS_move_pages,
        ],
    },
    Group {
        name: "programs in the kernel",
        why: "Code or long chains of work that the kernel runs on one's behalf, past this filter; \
              the source of most of its recent holes.",
        rule: REFUSED,
        calls: calls![
            SYS_bpf,
            SYS_io_uring_setup,
            SYS_io_uring_enter,
            SYS_io_uring_register,
            SYS_userfaultfd,
            SYS_perf_event_open,
        ],
    },
    Group {
        name: "kernel keys",
        why: "Keyrings are counted and shared by user, not by namespace.",
        rule: REFUSED,
        calls: calls![SYS_keyctl, SYS_add_key, SYS_request_key],
    },
    Group {
        name: "the kernel itself",
        why: "Replacing, extending or stopping it.",
        rule: REFUSED,
        calls: calls![
            SYS_kexec_load,
            SYS_kexec_file_load,
            SYS_init_module,
            SYS_finit_module,
            SYS_delete_module,
            SYS_reboot,
        ],
    },
    Group {
        name: "clocks and names",
        why: "The host's time and name.",
        rule: REFUSED,
        calls: calls![
            SYS_clock_settime,
            SYS_clock_adjtime,
            SYS_settimeofday,
            SYS_adjtimex,
            SYS_sethostname,
            SYS_setdomainname,
        ],
    },
    Group {
        name: "administration",
        why: "Accounting, quotas, swap, the kernel's log, consoles.",
        rule: REFUSED,
        calls: calls![
            SYS_acct,
            SYS_quotactl,
            SYS_quotactl_fd,
            SYS_swapon,
            SYS_swapoff,
            SYS_syslog,
            SYS_vhangup,
            SYS_nfsservctl,
            SYS_lookup_dcookie,
        ],
    },
    Group {
        name: "files by handle, and watching whole file systems",
        why: "A handle opens a file that no path of the sandbox leads to; fanotify hears of files it \
              cannot see.",
        rule: REFUSED,
        calls: calls![
            SYS_name_to_handle_at,
            SYS_open_by_handle_at,
            SYS_fanotify_init,
            SYS_fanotify_mark,
        ],
    },
    Group {
        name: "flushing everything",
        why: "sync writes out every file system of the host and waits for it: a brake for all \
              neighbours, and a clock that measures them; syncfs does it to the one that holds \
              the host's programs. fsync does the work for one's own files.",
        rule: REFUSED,
        calls: calls![SYS_sync, SYS_syncfs],
    },
    Group {
        name: "old asynchronous file access",
        why: "Its requests are counted in one budget for the whole machine. ENOSYS makes databases \
              fall back to threads.",
        rule: Rule::Always(Verdict::NOSYS),
        calls: calls![SYS_io_setup, SYS_io_destroy, SYS_io_submit, SYS_io_cancel, SYS_io_getevents],
    },
    #[cfg(target_arch = "x86_64")]
    Group {
        name: "ports and segments",
        why: "Hardware ports, and segment tables of which only emulators of old systems make use.",
        rule: REFUSED,
        calls: calls![SYS_iopl, SYS_ioperm, SYS_modify_ldt],
    },
];
