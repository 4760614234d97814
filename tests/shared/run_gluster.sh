#!/bin/sh
# The shared tier on a real distributed file system: GlusterFS with two replicated bricks on this machine, one of which is
# killed and brought back while processes store and read, and writers are killed. Run by `make test-shared`. Needs root
# and Debian's glusterfs-server and glusterfs-client; says so and ends well where they are missing.
# usage: run_gluster.sh TEST_SHARED_PROGRAM
set -u
program=$1
volume=weft-test

skip() {
    echo "test-shared: skipped: $1"
    exit 0
}

[ "$(id -u)" -eq 0 ] || skip "it needs root"
for c in glusterd gluster mount.glusterfs; do
    command -v $c >/dev/null || skip "no $c; install glusterfs-server and glusterfs-client"
done
[ -e /dev/fuse ] || skip "no /dev/fuse"

dir=$(mktemp -d /tmp/weft-gluster-XXXXXX)
host=$(hostname)
started=
daemon=
clean() {
    umount "$dir/mnt" 2>/dev/null || umount -l "$dir/mnt" 2>/dev/null
    [ -z "$started" ] || gluster --mode=script volume stop $volume force >/dev/null 2>&1
    [ -z "$started" ] || gluster --mode=script volume delete $volume >/dev/null 2>&1
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 1' INT TERM

mkdir "$dir/a" "$dir/b" "$dir/mnt"
if ! gluster --mode=script volume list >/dev/null 2>&1; then
    glusterd --no-daemon >"$dir/glusterd.log" 2>&1 &
    daemon=$!
    for _ in $(seq 100); do
        gluster --mode=script volume list >/dev/null 2>&1 && break
        sleep 0.2
    done
fi
gluster --mode=script volume create $volume replica 2 "$host:$dir/a" "$host:$dir/b" force >"$dir/log" 2>&1 ||
    { cat "$dir/log"; skip "no volume could be made"; }
started=yes
gluster --mode=script volume start $volume >>"$dir/log" 2>&1 || { cat "$dir/log"; skip "the volume does not start"; }
mount -t glusterfs "$host:/$volume" "$dir/mnt" >>"$dir/log" 2>&1 || { cat "$dir/log"; skip "the volume cannot be mounted"; }
mkdir "$dir/mnt/kv"

brick() {
    gluster --mode=script volume status $volume detail >/dev/null 2>&1
    cat /var/run/gluster/vols/$volume/*-"$(echo "$dir/b" | sed 's|^/||; s|/|-|g')".pid 2>/dev/null
}

WEFT_SHARED_DIR="$dir/mnt/kv" WEFT_SHARED_SECONDS=15 "$program" --filter 'shared/many_*' >"$dir/out" 2>&1 &
test=$!
sleep 4
victim=$(brick)
[ -n "$victim" ] || { echo "test-shared: no brick to kill"; cat "$dir/log"; kill $test; exit 1; }
kill -9 $victim
echo "test-shared: brick $victim killed"
sleep 4
gluster --mode=script volume start $volume force >>"$dir/log" 2>&1
echo "test-shared: brick back as $(brick)"
wait $test
status=$?
cat "$dir/out"
echo "test-shared: $(ls "$dir/mnt/kv" | grep -c '^seg-') sealed segments, $(ls "$dir/mnt/kv" | grep -c '^open-') unfinished ones left"
exit $status
