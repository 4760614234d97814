#!/bin/sh
# First process in the namespaces of run.sh: makes the root and becomes systemd.
# usage: inside.sh FOLDER INSTALLED
set -eu
dir=$1
installed=$2
mount --make-rprivate /
mkdir "$dir/over"
mount -t tmpfs tmpfs "$dir/over"
mkdir "$dir/over/upper" "$dir/over/work" "$dir/over/root"
root=$dir/over/root
mount -t overlay -o "lowerdir=/,upperdir=$dir/over/upper,workdir=$dir/over/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
ip link set lo up

# Nothing of the machine's own services: a target without dependencies, and the units that were installed.
rm -rf "$root/etc/systemd/system" "$root/var/lib/weft" "$root/var/lib/weft-nodes" "$root/var/lib/private" "$root/var/log/weft" "$root/etc/weft" "$root/opt/weft"
mkdir -p "$root/etc/systemd/system" "$root/etc/weft" "$root/opt" "$root/weft-test"
cp -a "$installed/opt/weft" "$root/opt/weft"
cp "$root/opt/weft/lib/systemd/system/"* "$root/etc/systemd/system/"
printf '[Unit]\nDescription=Nothing\nDefaultDependencies=no\n' >"$root/etc/systemd/system/weft-test.target"
printf 'weft:x:61234:\n' >>"$root/etc/group"
printf 'weft:x:61234:61234::/var/lib/weft:/usr/sbin/nologin\n' >>"$root/etc/passwd"
cp "$(dirname "$0")/steps.sh" "$root/weft-test/"
: >"$dir/ready"
exec env -i container=weft-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" /lib/systemd/systemd --system --unit=weft-test.target --log-target=console --show-status=no
