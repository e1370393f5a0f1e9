#!/usr/bin/env bash
# Boots one virtual machine and waits for its end:  boot.sh WORK LAYOUT SECONDS
# In a mount namespace of its own: the view of this machine that it is given is read-only.
set -euo pipefail
exec </dev/null
work="$1" layout="$2" seconds="$3"
release="$(basename "$work"/kernel/lib/modules/*)"
servers=()

finish() {
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    wait
}
trap finish EXIT

for program in /usr/lib/qemu/virtiofsd /usr/libexec/virtiofsd virtiofsd; do
    if command -v "$program" >/dev/null; then break; fi
done
share() {
    local tag="$1" directory="$2" cache="$3"
    rm -f "$work/$tag.sock"
    "$program" -f --socket-path="$work/$tag.sock" -o source="$directory" -o sandbox=chroot \
        -o "cache=$cache" -o xattr --rlimit-nofile=0 >"$work/$tag.log" 2>&1 &
    servers+=($!)
    for _ in $(seq 100); do
        if [ -S "$work/$tag.sock" ]; then return; fi
        sleep 0.1
    done
    cat "$work/$tag.log" >&2
    exit 1
}

mkdir -p "$work/host"
mount --bind / "$work/host"
mount -o remount,bind,ro "$work/host"
share host "$work/host" always
share payload "$work/payload-$layout" auto

nice -n 10 timeout --kill-after 5 "$seconds" qemu-system-x86_64 \
    -accel tcg -cpu max -smp 1 -m 2048 -nodefaults -no-user-config -display none -no-reboot \
    -object memory-backend-memfd,id=memory,size=2048M,share=on -numa node,memdev=memory \
    -kernel "$work/kernel/boot/vmlinuz-$release" -initrd "$work/initrd.gz" \
    -append "console=ttyS0 quiet panic=-1 layout=$layout" -serial stdio \
    -chardev socket,id=host,path="$work/host.sock" \
    -device vhost-user-fs-pci,chardev=host,tag=host \
    -chardev socket,id=payload,path="$work/payload.sock" \
    -device vhost-user-fs-pci,chardev=payload,tag=payload
