#!/bin/sh
# Every case of the shared tier on a real distributed file system: GlusterFS with two replicated bricks on this machine,
# seen through two clients. The second brick is killed and brought back again and again while the cases run, in which
# writers are killed at any write and a reader stands still while files that it knows are deleted and their room is used
# again, and beside them a writer that notes each block that its tier has reported durable. Then the second brick has to
# be healed within two minutes, with the same files of the same bytes as the first one; the first one is killed, and every
# block of that list is read from what the second one has. Run by `make test-shared`. Needs root and Debian's
# glusterfs-server and glusterfs-client; says so and ends well where they are missing.
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
keeper=
clean() {
    [ -z "$test" ] || kill "$test" 2>/dev/null
    [ -z "$keeper" ] || kill "$keeper" 2>/dev/null
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
mkdir "$dir/one/kv" "$dir/one/kv/kept"

fail() {
    echo "test-shared: FAILED: $1"
    tail -20 "$dir/log"
    exit 1
}

# The process of a brick, a or b.
brick() {
    gluster --mode=script volume status $volume detail >/dev/null 2>&1
    cat /var/run/gluster/vols/$volume/*-"$(echo "$dir/$1" | sed 's|^/||; s|/|-|g')".pid 2>/dev/null
}

kill_brick() {
    victim=$(brick "$1")
    [ -n "$victim" ] || fail "no brick $1 to kill"
    kill -9 "$victim"
}

bring_back() {
    gluster --mode=script volume start $volume force >>"$dir/log" 2>&1
}

# Whether both bricks are there and nothing of the volume is left to be healed. Not of it: what only the brick that was
# away still has of a folder that was removed meanwhile, without a name, which GlusterFS may list for good.
healed() {
    gluster --mode=script volume heal $volume info >"$dir/heal" 2>&1 &&
        [ "$(grep -c '^Status: Connected' "$dir/heal")" -eq 2 ] && ! grep -q '^/' "$dir/heal" || return 1
    for id in $(sed -n 's/^<gfid:\([0-9a-f-]*\)>.*/\1/p' "$dir/heal"); do
        ! ls -d "$dir"/a/.glusterfs/??/??/"$id" >/dev/null 2>&1 || return 1
    done
}

# Sums and names of the files that a brick has of what is kept. Of the cases' folders, which are removed by now, GlusterFS
# may for good leave some on the brick that was away when they were emptied, and does not tell of them.
sums() {
    (cd "$dir/$1/kv/kept" && find . -type f -exec sha256sum {} + | sort -k 2)
}

# Whether both have the same files.
same() {
    sums a >"$dir/sums-a"
    sums b >"$dir/sums-b"
    [ -s "$dir/sums-a" ] && diff "$dir/sums-a" "$dir/sums-b" >>"$dir/heal"
}

# kept PHASE: the writer, or the reader, of blocks that were reported durable.
kept() {
    WEFT_SHARED_DIR="$dir/one/kv" WEFT_SHARED_DIR2="$dir/two/kv" WEFT_SHARED_KEPT="$dir/kept" WEFT_SHARED_PHASE=$1 \
        "$program" --verbose --filter 'shared_kept/*' >"$dir/out-$1" 2>&1
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
kept write &
keeper=$!
kills=0
turn 3
while running; do
    kill_brick b
    kills=$((kills + 1))
    turn 4
    bring_back
    turn 8
done
wait $test
status=$?
test=
cat "$dir/out"
: >"$dir/kept.end"
wait $keeper || { cat "$dir/out-write"; fail "the writer of blocks that are kept"; }
keeper=
[ $status -eq 0 ] || exit $status

bring_back
end=$(($(date +%s) + ${WEFT_HEAL_SECONDS:-120}))
until healed && same; do
    [ "$(date +%s)" -lt $end ] || { cat "$dir/heal"; fail "the brick that was away is not healed, or differs"; }
    gluster --mode=script volume heal $volume >>"$dir/log" 2>&1
    sleep 1
done

kill_brick a
kept read || { cat "$dir/out-read"; fail "blocks that were reported durable, read from the brick that was healed"; }
bring_back

echo "test-shared: a brick was killed and brought back $kills times; healed, $(wc -l <"$dir/sums-b") files are the same" \
    "on both; $(wc -l <"$dir/kept") blocks that were reported durable were read from it alone"
