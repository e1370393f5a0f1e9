#!/usr/bin/env bash
# Proves what the machines of every day cannot: sandboxes on control groups of the second generation
# alone, with every controller, and on those of the first alone. Boots Debian's cloud kernel in QEMU,
# without hardware support, with this machine's programs shown read-only, runs scripts/vm/checks.sh in
# it, and writes docs/reports/cgroup-v2.md. Takes minutes, needs root and Debian: run it by hand.
#
#   scripts/vm/run.sh              both layouts, and the report
#   scripts/vm/run.sh v2           one layout, no report
#   scripts/vm/run.sh v2 NAME...   only the checks whose names contain one of these
#
#   VM_SECONDS=2400  how long one virtual machine may take
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null

readonly VM_SECONDS="${VM_SECONDS:-2400}"
readonly REPORT=docs/reports/cgroup-v2.md

fail() {
    printf 'vm/run.sh: %s\n' "$1" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || fail 'needs root, to show this machine to the virtual one'
command -v apt-get >/dev/null || fail 'needs apt-get: the kernel is a package of Debian'

work="$(realpath "${CARGO_TARGET_DIR:-target}")/vm"
mkdir -p "$work/packages" "$work/kernel"

missing=()
for needed in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio modprobe:kmod \
    curl:curl newuidmap:uidmap; do
    command -v "${needed%%:*}" >/dev/null || missing+=("${needed##*:}")
done
if [ "${#missing[@]}" -gt 0 ] || ! compgen -G "$work/packages/*.deb" >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    [ "${#missing[@]}" = 0 ] || apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi
# The package of the name only says which one has the kernel of today.
if ! compgen -G "$work/packages/*.deb" >/dev/null; then
    package="$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p')"
    (cd "$work/packages" && apt-get download -qq -o APT::Sandbox::User=root "$package")
    dpkg-deb -x "$work"/packages/*.deb "$work/kernel"
fi
release="$(basename "$work"/kernel/lib/modules/*)"
[ -e "$work/kernel/lib/modules/$release/modules.dep" ] || depmod -b "$work/kernel" "$release"

echo "building for Linux $release"
cargo build --quiet --locked -p shoal
test_program="$(cargo test --locked -p integration-tests --no-run 2>&1 |
    sed -n 's/.*Executable it.main.rs (\(.*\))/\1/p')"
[ -n "$test_program" ] || fail 'the integration tests were not built'

rm -rf "$work/initrd"
mkdir -p "$work"/initrd/{bin,modules,proc,sys,dev,host}
cp "$(command -v busybox)" "$work/initrd/bin/busybox"
cp scripts/vm/init "$work/initrd/init"
for module in virtio_pci virtiofs overlay; do
    modprobe -d "$work/kernel" -S "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
    cp "$module" "$work/initrd/modules/"
    basename "$module" >>"$work/initrd/modules/order"
done
(cd "$work/initrd" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"

# Boots one and says whether all its checks passed.
run() {
    local layout="$1" payload="$work/payload-$1"
    shift
    rm -rf "$payload"
    mkdir -p "$payload/out"
    strip -o "$payload/it" "$test_program"
    strip -o "$payload/shoal" "${CARGO_TARGET_DIR:-target}/debug/shoal"
    cp scripts/vm/checks.sh "$payload/"
    printf '%s\n' "$@" >"$payload/only"
    echo "== $layout"
    unshare --mount --propagation private -- \
        scripts/vm/boot.sh "$work" "$layout" "$VM_SECONDS" | tee "$work/console-$layout"
    [ -e "$payload/out/finished" ] || fail "the virtual machine did not come to its end: $work/console-$layout"
    [ -s "$payload/out/results" ] && ! grep -q $'\tFAILED$' "$payload/out/results"
}

section() {
    printf '\n## %s\n\n| check | result |\n|---|---|\n' "$2"
    sed 's/^\(.*\)\t\(.*\)$/| \1 | \2 |/' "$work/payload-$1/out/results"
}

if [ $# -gt 0 ]; then
    run "$@"
    exit
fi
status=0
run v2 || status=1
run v1 || status=1
{
    printf '# Control groups, in a virtual machine\n\n'
    printf 'Written by `scripts/vm/run.sh` on %s at commit %s.\n' \
        "$(date -u +%Y-%m-%d)" "$(git rev-parse --short HEAD)"
    printf 'Linux %s in QEMU, one emulated processor, 2 GiB. Each line is a check of\n' "$release"
    printf '`scripts/vm/checks.sh`; those in code are tests of `tests/it`.\n'
    section v2 'The second generation alone'
    section v1 'The first generation alone'
} >"$REPORT"
echo "wrote $REPORT"
exit "$status"
