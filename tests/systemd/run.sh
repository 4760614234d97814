#!/bin/sh
# The systemd units under a systemd of their own: in namespaces of this script, on an overlay of the machine's root that is
# thrown away, with an own network and an own branch of the control groups. Run by `make test-systemd`; needs root, systemd
# and the kernel's overlay and cgroup2, says so and ends well where they are missing.
# usage: run.sh FOLDER, into which `make install DESTDIR=FOLDER PREFIX=/opt/weft` has installed
set -u
installed=$1
here=$(cd "$(dirname "$0")" && pwd)

skip() {
    echo "test-systemd: skipped: $1"
    exit 0
}

[ "$(id -u)" -eq 0 ] || skip "it needs root"
[ -x /lib/systemd/systemd ] || skip "no systemd"
for c in unshare nsenter ip curl; do
    command -v $c >/dev/null || skip "no $c"
done
for fs in overlay cgroup2; do
    grep -qw $fs /proc/filesystems || skip "the kernel has no $fs"
done
groups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$groups" ] || skip "cgroup2 is not mounted"
branch=$groups/weft-test-$$
mkdir "$branch" 2>/dev/null || skip "no control group can be made"

dir=$(mktemp -d /tmp/weft-systemd-XXXXXX)
manager=
clean() {
    [ -z "$manager" ] || kill -KILL "$manager" 2>/dev/null
    [ -z "$manager" ] || wait "$manager" 2>/dev/null
    for _ in $(seq 50); do # the kernel takes the processes away in its own time
        find "$branch" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.1
    done
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 1' INT TERM

# PID 1 of the namespaces; the script itself stays outside of them.
sh -c 'echo $$ >"$1/cgroup.procs" && exec unshare --cgroup --mount --pid --uts --ipc --net --fork --kill-child \
    sh "$2/inside.sh" "$3" "$4"' sh "$branch" "$here" "$dir" "$installed" >"$dir/console" 2>&1 &
manager=$!
pid=
for _ in $(seq 300); do
    pid=$(pgrep -P "$manager" 2>/dev/null | head -1)
    [ -n "$pid" ] && [ -e "$dir/ready" ] && [ -S "/proc/$pid/root/run/systemd/private" ] && break
    kill -0 "$manager" 2>/dev/null || break
    pid=
    sleep 0.1
done
if [ -z "$pid" ]; then
    tail -20 "$dir/console"
    skip "a systemd in a namespace of its own does not start here"
fi
nsenter --target "$pid" --all --root --wd sh "/weft-test/steps.sh"
status=$?
[ $status -eq 0 ] || tail -60 "$dir/console"
exit $status
