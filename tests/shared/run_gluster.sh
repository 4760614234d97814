#!/bin/sh
# Every case of the shared tier on a real distributed file system: GlusterFS with two replicated bricks on this machine,
# seen through two clients. One brick is killed and brought back again and again while the cases run, in which writers are
# killed at any write and a reader stands still while files that it knows are deleted and their room is used again. Run
# by `make test-shared`. Needs root and Debian's glusterfs-server and glusterfs-client; says so and ends well where they
# are missing.
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
test=
clean() {
    [ -z "$test" ] || kill "$test" 2>/dev/null
    for m in one two; do
        umount "$dir/$m" 2>/dev/null || umount -l "$dir/$m" 2>/dev/null
    done
    [ -z "$started" ] || gluster --mode=script volume stop $volume force >/dev/null 2>&1
    [ -z "$started" ] || gluster --mode=script volume delete $volume >/dev/null 2>&1
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 1' INT TERM

mkdir "$dir/a" "$dir/b" "$dir/one" "$dir/two"
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
for m in one two; do
    mount -t glusterfs "$host:/$volume" "$dir/$m" >>"$dir/log" 2>&1 ||
        { cat "$dir/log"; skip "the volume cannot be mounted"; }
done
mkdir "$dir/one/kv"

brick() {
    gluster --mode=script volume status $volume detail >/dev/null 2>&1
    cat /var/run/gluster/vols/$volume/*-"$(echo "$dir/b" | sed 's|^/||; s|/|-|g')".pid 2>/dev/null
}

running() {
    kill -0 $test 2>/dev/null
}

# Turns of this many seconds; ends early with the test.
turn() {
    for _ in $(seq "$1"); do
        running && sleep 1
    done
}

WEFT_SHARED_DIR="$dir/one/kv" WEFT_SHARED_DIR2="$dir/two/kv" WEFT_SHARED_SECONDS=${WEFT_SHARED_SECONDS:-15} \
    "$program" --verbose --filter 'shared_folder/*' >"$dir/out" 2>&1 &
test=$!
kills=0
turn 3
while running; do
    victim=$(brick)
    [ -n "$victim" ] || { echo "test-shared: no brick to kill"; cat "$dir/log"; exit 1; }
    kill -9 "$victim"
    kills=$((kills + 1))
    turn 4
    gluster --mode=script volume start $volume force >>"$dir/log" 2>&1
    turn 8
done
wait $test
status=$?
test=
cat "$dir/out"
echo "test-shared: a brick was killed and brought back $kills times; left: $(find "$dir/one/kv" -type f | wc -l) files"
exit $status
