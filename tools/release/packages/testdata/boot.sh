# Starts systemd in namespaces of its own, in an overlay of this machine's files that has the
# package $DEB. It runs $SCRIPT, whose output goes to $OUT. Nothing of it remains.
#
# systemd gets a group of its own in the cgroup file system. What the kernel has once for all
# namespaces, below /proc/sys, is read-only, but for the network's.
groups=/sys/fs/cgroup
[ -f $groups/cgroup.controllers ] || groups=/sys/fs/cgroup/unified
mkdir "$groups/proxima-test-$$"
trap 'find "$groups/proxima-test-$$" -depth -type d -exec rmdir {} +' EXIT
cat >"$WORK/inside" <<'INSIDE'
mount -t tmpfs tmpfs "$WORK"
mkdir "$WORK/upper" "$WORK/work" "$WORK/root" "$WORK/proc"
mount -t overlay overlay -o "lowerdir=/,upperdir=$WORK/upper,workdir=$WORK/work" "$WORK/root"
cd "$WORK/root"
mount -t proc proc proc
mount -t proc proc "$WORK/proc"
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --bind "$WORK/proc/sys/net" proc/sys/net
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
	touch dev/$node
	mount --bind /dev/$node dev/$node
done
mkdir dev/shm dev/pts
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
ip link set lo up
ip link add uplink type veth peer name far
ip address add 10.77.0.1/24 dev uplink
ip link set uplink up
ip link set far up
ip route add default via 10.77.0.254
cp "$DEB" tmp/proxima.deb
chroot . dpkg -i /tmp/proxima.deb >"$OUT" 2>&1
# No service of this machine starts.
rm -rf lib/systemd/system/*.wants etc/systemd/system/*.wants etc/systemd/system/*.requires etc/fstab
mkdir -p etc/systemd/system
cat >etc/systemd/system/units-test.service <<'UNIT'
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
StandardOutput=append:/tmp/out
StandardError=append:/tmp/out
ExecStart=sh -e /tmp/script
ExecStopPost=systemctl exit
UNIT
cat >etc/systemd/system/units-test.target <<'UNIT'
[Unit]
DefaultDependencies=no
Wants=units-test.service
UNIT
printf '%s' "$SCRIPT" >tmp/script
touch tmp/out
mount --bind "$OUT" tmp/out
# Not chroot: in one the kernel makes no user namespaces, which units ask for.
mkdir before
pivot_root . before
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test /bin/sh -ec 'umount -l /before; exec /lib/systemd/systemd --unit=units-test.target --log-target=null --show-status=no' </dev/null
INSIDE
touch "$OUT"
# The shell joins the group, so that the group is the root of what it unshares.
sh -ec 'echo $$ >"$0/cgroup.procs"; exec timeout --signal=KILL 180 unshare --mount --net --pid --fork --kill-child --cgroup --ipc --uts --propagation private sh -e "$WORK/inside"' \
	"$groups/proxima-test-$$" || true
