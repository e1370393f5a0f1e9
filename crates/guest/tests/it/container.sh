# A container, as small as one can be: container.sh ROOT GUEST COMMAND...
# ROOT is an empty directory to build in, GUEST the binary that is seen as /.shoal/guest. Started as
# the first process of new namespaces for mounts, processes, ipc and the network.
set -e
root=$1
guest=$2
shift 2
ip link set lo up
mount -t tmpfs -o mode=755,size=16m root "$root"
cd "$root"
mkdir -p usr etc dev/shm dev/mqueue dev/pts proc workspace tmp run/shoal run/secrets .shoal old
for name in bin sbin lib lib64; do
    if [ -L "/$name" ]; then ln -s "$(readlink "/$name")" "$name"; fi
done
mount --bind /usr usr
mount -o remount,bind,ro usr
touch .shoal/guest
mount --bind "$guest" .shoal/guest
mount -o remount,bind,ro .shoal/guest
for name in null zero full random urandom; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t mqueue -o nosuid,nodev,noexec mqueue dev/mqueue
mount -t tmpfs -o nosuid,nodev,mode=755,uid=1000,gid=1000,size=600m workspace workspace
mount -t tmpfs -o nosuid,nodev,mode=1777,size=64m tmp tmp
mount -t tmpfs -o nosuid,nodev,mode=1777,size=64m shm dev/shm
mount -t tmpfs -o nosuid,nodev,noexec,mode=755,uid=1000,gid=1000,size=64k scale run/shoal
mount -t tmpfs -o nosuid,nodev,noexec,mode=700,uid=1000,gid=1000,size=8m secrets run/secrets
mount -o remount,bind,ro "$root"
pivot_root . old
cd /
umount -l /old
ulimit -n 1024
exec setsid setpriv --reuid=1000 --regid=1000 --clear-groups --bounding-set=-all --inh-caps=-all \
    --no-new-privs "$@"
