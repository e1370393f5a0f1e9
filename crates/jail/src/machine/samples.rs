//! Sample machines, as their files show them, shortened to what matters.

use std::collections::BTreeMap;
use std::path::Path;

use super::Files;

/// A machine that does not exist.
#[derive(Default)]
pub(super) struct Sample {
    texts: BTreeMap<String, String>,
    denied: Vec<&'static str>,
    delegated: Vec<&'static str>,
}

impl Sample {
    fn new(release: &str, mountinfo: &str, cgroup: &str) -> Self {
        let sample = Self::default();
        sample
            .with("/proc/sys/kernel/osrelease", release)
            .with("/proc/self/mountinfo", mountinfo)
            .with("/proc/self/cgroup", cgroup)
    }

    pub(super) fn with(mut self, path: &str, text: &str) -> Self {
        self.texts.insert(path.to_owned(), text.to_owned());
        self
    }

    fn denying(mut self, path: &'static str) -> Self {
        self.denied.push(path);
        self
    }

    fn delegating(mut self, path: &'static str) -> Self {
        self.delegated.push(path);
        self
    }
}

impl Files for Sample {
    fn text(&self, path: &Path) -> Option<String> {
        self.texts.get(path.to_str()?).cloned()
    }

    fn exists(&self, path: &Path) -> bool {
        self.texts.keys().any(|known| Path::new(known).starts_with(path))
    }

    fn may_change(&self, path: &Path) -> bool {
        !self.denied.iter().any(|denied| path == Path::new(denied))
    }

    fn is_delegated(&self, path: &Path) -> bool {
        self.delegated.iter().any(|delegated| path == Path::new(delegated))
    }
}

const V2_MOUNTS: &str = "\
25 30 0:23 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
30 25 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
31 25 0:27 / /sys/fs/pstore rw,nosuid - pstore pstore rw
";
const V2_CONTROLLERS: &str = "cpuset cpu io memory hugetlb pids rdma misc\n";

/// A modern server, root in a login session.
pub(super) fn systemd_root() -> Sample {
    Sample::new("6.12.9-amd64", V2_MOUNTS, "0::/user.slice/user-0.slice/session-3.scope\n")
        .with("/sys/fs/cgroup/cgroup.controllers", V2_CONTROLLERS)
        .with("/sys/fs/cgroup/cgroup.procs", "")
}

/// The same server, as a service to which its group was delegated.
pub(super) fn systemd_service() -> Sample {
    const OWN: &str = "/sys/fs/cgroup/system.slice/shoal.service";
    Sample::new("6.12.9-amd64", V2_MOUNTS, "0::/system.slice/shoal.service\n")
        .with(&format!("{OWN}/cgroup.controllers"), "cpu memory pids\n")
        .with(&format!("{OWN}/cgroup.type"), "domain\n")
        .with(&format!("{OWN}/cgroup.procs"), "812\n")
        .delegating(OWN)
}

/// The same service in a child of its group, where systemd or a process of ours has put it.
pub(super) fn systemd_service_in(part: &str) -> Sample {
    const OWN: &str = "/sys/fs/cgroup/system.slice/shoal.service";
    let cgroup = format!("0::/system.slice/shoal.service/{part}\n");
    Sample::new("6.12.9-amd64", V2_MOUNTS, &cgroup)
        .with(&format!("{OWN}/cgroup.controllers"), "cpu memory pids\n")
        .with(&format!("{OWN}/cgroup.type"), "domain\n")
        .with(&format!("{OWN}/cgroup.procs"), "")
        .with(&format!("{OWN}/{part}/cgroup.type"), "domain\n")
        .with(&format!("{OWN}/{part}/cgroup.procs"), "812\n")
        .delegating(OWN)
}

/// A desktop, as an ordinary user whose session manager got memory and pids delegated.
pub(super) fn systemd_user() -> Sample {
    const OWN: &str =
        "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope";
    let cgroup = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope\n";
    Sample::new("6.8.0-45-generic", V2_MOUNTS, cgroup)
        .with(&format!("{OWN}/cgroup.controllers"), "memory pids\n")
        .with(&format!("{OWN}/cgroup.type"), "domain\n")
        .with(&format!("{OWN}/cgroup.procs"), "4021\n4090\n")
        .denying("/sys/fs/cgroup")
}

/// The same after a run of ours, in a group of the session manager itself.
pub(super) fn systemd_user_in(scope: &str) -> Sample {
    const MANAGER: &str = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service";
    let cgroup = format!("0::/user.slice/user-1000.slice/user@1000.service/{scope}\n");
    Sample::new("6.8.0-45-generic", V2_MOUNTS, &cgroup)
        .with(&format!("{MANAGER}/a.scope/cgroup.controllers"), "memory pids\n")
        .with(&format!("{MANAGER}/a.scope/cgroup.type"), "domain\n")
        .with(&format!("{MANAGER}/a.scope/cgroup.procs"), "")
        .delegating(MANAGER)
        .denying("/sys/fs/cgroup")
}

/// A group in threaded mode.
pub(super) fn threaded(kind: &str) -> Sample {
    const OWN: &str = "/sys/fs/cgroup/system.slice/shoal.service";
    systemd_service().with(&format!("{OWN}/cgroup.type"), kind)
}

/// The same, over ssh without a session manager: no group is ours.
pub(super) fn user_without_delegation() -> Sample {
    const OWN: &str = "/sys/fs/cgroup/user.slice/user-1000.slice/session-9.scope";
    Sample::new("6.8.0-45-generic", V2_MOUNTS, "0::/user.slice/user-1000.slice/session-9.scope\n")
        .with(&format!("{OWN}/cgroup.controllers"), "memory pids\n")
        .with(&format!("{OWN}/cgroup.type"), "domain\n")
        .denying(OWN)
        .denying("/sys/fs/cgroup")
}

/// A microVM whose first process mounts every hierarchy.
pub(super) fn hybrid_microvm() -> Sample {
    let mountinfo = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    let cgroup = "9:name=systemd:/\n8:pids:/\n6:freezer:/\n4:memory:/agent/d6a4\n1:cpu:/\n0::/\n";
    Sample::new("6.18.5", mountinfo, cgroup)
        .with("/sys/fs/cgroup/unified/cgroup.controllers", "")
        .with("/sys/fs/cgroup/unified/cgroup.procs", "1\n2\n")
}

/// A server of ten years ago.
pub(super) fn v1_server() -> Sample {
    let mountinfo = "\
24 19 0:20 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:8 - tmpfs tmpfs ro,mode=755
25 24 0:21 / /sys/fs/cgroup/systemd rw,nosuid shared:9 - cgroup cgroup rw,xattr,name=systemd
27 24 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpuacct,cpu
28 24 0:24 / /sys/fs/cgroup/memory rw,nosuid shared:11 - cgroup cgroup rw,memory
29 24 0:25 / /sys/fs/cgroup/pids rw,nosuid shared:12 - cgroup cgroup rw,pids
30 24 0:26 / /sys/fs/cgroup/freezer rw,nosuid shared:13 - cgroup cgroup rw,freezer
";
    let cgroup = "5:cpuacct,cpu:/user.slice\n4:memory:/user.slice\n3:pids:/\n2:freezer:/\n1:name=systemd:/\n";
    Sample::new("4.18.0-553.el8.x86_64", mountinfo, cgroup)
}

/// Inside an ordinary container on a modern server.
pub(super) fn container() -> Sample {
    let mountinfo = "\
812 790 0:51 / / rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b,workdir=/c
815 812 0:55 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
816 815 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate
";
    container_files(Sample::new("6.12.9-amd64", mountinfo, "0::/\n"))
}

/// Inside a privileged one.
pub(super) fn privileged_container() -> Sample {
    let mountinfo = "\
816 815 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate
";
    container_files(Sample::new("6.12.9-amd64", mountinfo, "0::/\n"))
}

fn container_files(sample: Sample) -> Sample {
    sample
        .with("/sys/fs/cgroup/cgroup.controllers", V2_CONTROLLERS)
        .with("/sys/fs/cgroup/cgroup.type", "domain\n")
        .with("/sys/fs/cgroup/cgroup.procs", "1\n14\n")
}

/// Inside an ordinary container on a server of ten years ago.
pub(super) fn v1_container() -> Sample {
    let mountinfo = "\
704 703 0:23 /docker/4f2 /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct
705 703 0:24 /docker/4f2 /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
706 703 0:25 /docker/4f2 /sys/fs/cgroup/pids ro,nosuid - cgroup cgroup rw,pids
707 703 0:26 /docker/4f2 /sys/fs/cgroup/freezer ro,nosuid - cgroup cgroup rw,freezer
";
    let cgroup = "4:cpu,cpuacct:/docker/4f2\n3:memory:/docker/4f2\n2:pids:/docker/4f2\n";
    Sample::new("4.19.0-27-amd64", mountinfo, cgroup)
}

/// WSL 2, as it was for years.
pub(super) fn windows() -> Sample {
    let mountinfo = "\
80 70 0:35 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,mode=755
81 80 0:36 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec,relatime - cgroup2 cgroup2 rw,nsdelegate
83 80 0:38 / /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu
85 80 0:40 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
91 80 0:46 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
87 80 0:42 / /sys/fs/cgroup/freezer rw,nosuid - cgroup cgroup rw,freezer
";
    Sample::new("5.15.153.1-microsoft-standard-WSL2", mountinfo, "4:memory:/\n1:cpu:/\n0::/\n")
        .with("/sys/fs/cgroup/unified/cgroup.controllers", "")
}

/// A chroot with no mounts.
pub(super) fn bare() -> Sample {
    Sample::new("6.1.0", "20 1 0:20 / / rw - ext4 /dev/sda1 rw\n", "0::/\n")
}
