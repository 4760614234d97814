#!/bin/bash
# guest.sh COMMAND [ARGUMENT...]: runs COMMAND in a throw-away virtual machine that has RDMA devices.
#
# Boots a stock Debian kernel under QEMU (plain emulation, so that it runs alike on every machine) with the kernel's own soft-RoCE,
# rdma_rxe. The host needs no RDMA, no kernel modules and no root. The guest's root is the host's, read-only with a
# scratch layer in memory; the repository is shared at its own path and is the working directory, so that what was built
# here runs there, and what is written there comes back. tests/rdma/guest_main.sh lists the devices.
#
# Exit status: of COMMAND; 77: this machine cannot run the guest (the reason is on standard error); 124: no end in time;
# 125: the guest died, with the end of its kernel's log on standard error.
#
#   WEFT_GUEST_IMAGE     folder of the kernel and the initramfs, made when it is not there ($BUILD/rdma-guest)
#   WEFT_GUEST_MEMORY    MiB (1024)
#   WEFT_GUEST_SECONDS   for booting and COMMAND together (600)
#   WEFT_GUEST_KERNEL    kernel package (linux-image-amd64; the -cloud- ones lack rdma_rxe)
#   WEFT_GUEST_LOG       file that gets the kernel's log
#   WEFT_GUEST_PASS      names of variables that COMMAND gets
#   WEFT_GUEST_VERBOSE   1: say how long booting took
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
here=$(dirname "$(realpath "$0")")
folder=$(realpath "$here/../..")
image=${WEFT_GUEST_IMAGE:-$folder/${BUILD:-build}/rdma-guest}
limit=${WEFT_GUEST_SECONDS:-600}

cannot() {
    echo "rdma guest: $*" >&2
    exit 77
}

[ $# -gt 0 ] || { echo "usage: $0 COMMAND [ARGUMENT...]" >&2; exit 2; }
[ "$(uname -m)" = x86_64 ] || cannot "only x86-64 hosts are supported, this is $(uname -m)"
command -v qemu-system-x86_64 >/dev/null || cannot "qemu-system-x86_64 is missing (package qemu-system-x86)"
for tool in rdma ip; do
    command -v $tool >/dev/null || cannot "$tool is missing (package iproute2), which sets up the guest's devices"
done
ls /usr/lib/*/libibverbs/librxe-rdmav*.so >/dev/null 2>&1 ||
    cannot "the verbs library of soft-RoCE is missing (package ibverbs-providers)"
# An image belongs to the scripts that are in it.
wanted=$(cat "$here/guest_image.sh" "$here/guest_init.sh" | sha256sum | cut -c1-16)
if [ "$(cat "$image/made_by" 2>/dev/null)" != "$wanted" ]; then
    bash "$here/guest_image.sh" "$image" || exit $?
    echo "$wanted" >"$image/made_by"
fi

control=$(mktemp -d "${TMPDIR:-/tmp}/weft-guest.XXXXXX")
qemu=
finish() {
    if [ -n "$qemu" ]; then kill "$qemu" 2>/dev/null || true; fi
    rm -rf "$control"
}
trap finish EXIT
trap 'exit 143' TERM HUP
trap 'exit 130' INT

cp "$here/guest_main.sh" "$control/main"
{
    printf 'folder=%q\ncommand=(' "$folder"
    printf '%q ' "$@"
    echo ')'
    printf 'export PATH=%q HOME=/root LANG=C.UTF-8 WEFT_IN_RDMA_GUEST=1\n' "$PATH"
    for name in ${WEFT_GUEST_PASS:-}; do
        if [ -n "${!name+x}" ]; then printf 'export %s=%q\n' "$name" "${!name}"; fi
    done
} >"$control/settings"

# la57=off: page tables of four levels are cheaper to walk in software. tsc=reliable: the clock watchdog misfires under
# emulation and would move clock_gettime() from the time stamp counter to an emulated timer. Reboot and panic both end
# QEMU.
machine=(-accel 'tcg,thread=multi' -cpu 'max,la57=off')
log=${WEFT_GUEST_LOG:-$control/kernel.log}
: >"$log"
# A pipe with a name: a chardev on standard input and output counts as unplugged, and blocks the guest, once the input
# is at its end.
mkfifo "$control/output"
cat "$control/output" &
reader=$!
share() { # TAG PATH OPTIONS
    echo "-fsdev local,id=$1,path=$2,security_model=none,multidevs=remap$3 -device virtio-9p-pci,fsdev=$1,mount_tag=$1"
}
# shellcheck disable=SC2046
timeout -k 10 "$limit" qemu-system-x86_64 -machine q35 "${machine[@]}" -smp 2 -m "${WEFT_GUEST_MEMORY:-1024}" \
    -nodefaults -no-user-config -display none -no-reboot -nic none \
    -kernel "$image/kernel" -initrd "$image/initramfs" \
    -append "console=ttyS0 loglevel=4 panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check nowatchdog audit=0 \
apparmor=0 net.ifnames=0 cryptomgr.notests" \
    -chardev file,id=log,path="$log" -serial chardev:log \
    -chardev file,id=output,path="$control/output" \
    -device virtio-serial-pci -device virtserialport,chardev=output,nr=1 \
    $(share host / ,readonly=on) $(share folder "$folder" '') $(share control "$control" '') </dev/null &
qemu=$! # not in the foreground, so that a signal to this script is acted on at once
status=0
wait $qemu || status=$?
qemu=
wait $reader || true

if [ "${WEFT_GUEST_VERBOSE:-0}" = 1 ]; then
    echo "rdma guest: ready $(cat "$control/ready" 2>/dev/null || echo never) s after the start of its kernel" >&2
fi
if [ $status -eq 124 ] || [ $status -eq 137 ]; then
    echo "rdma guest: no end after $limit s; its kernel's log ends:" >&2
    tail -n 15 "$log" >&2
    exit 124
fi
if [ ! -s "$control/status" ]; then
    echo "rdma guest: it died (qemu's status $status); its kernel's log ends:" >&2
    tail -n 40 "$log" >&2
    exit 125
fi
# Not the command's fault, but worth knowing when it failed.
grep -E -A 3 'BUG:|WARNING:|Oops|soft lockup|rcu.*stall' "$log" | head -n 20 | sed 's/^/rdma guest: kernel: /' >&2 || true
exit "$(cat "$control/status")"
