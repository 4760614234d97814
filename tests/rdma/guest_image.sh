#!/bin/bash
# guest_image.sh DIR: makes DIR/kernel and DIR/initramfs for tests/rdma/guest.sh from Debian's stock kernel package,
# which is downloaded and unpacked, never installed. Needs no root. Exit status 77: not possible on this machine, with
# the reason on standard error.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
here=$(dirname "$(realpath "$0")")
out=$1
package=${WEFT_GUEST_KERNEL:-linux-image-amd64}
# In the order in which they are asked for; what each depends on comes before it. rdma_rxe takes crc32_generic by name
# at run time, so no dependency shows it.
modules='virtio_pci virtio_console 9p 9pnet_virtio overlay dummy veth sch_netem crc32_generic rdma_rxe ib_uverbs
    rdma_ucm'

cannot() {
    echo "rdma guest: $*" >&2
    exit 77
}

for tool in apt-get dpkg depmod modprobe cpio xz zstd; do
    command -v $tool >/dev/null || cannot "$tool is missing, which building the guest's kernel image needs"
done
busybox=$(command -v busybox) || cannot "busybox (package busybox-static) is missing"

work=$(mktemp -d "${TMPDIR:-/tmp}/weft-guest-image.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The package without a version only depends on the one that holds the kernel.
real_package() {
    apt-cache depends "$package" 2>/dev/null | awk '/Depends: linux-image-/ { print $2; exit }'
}
fetch() {
    local real
    real=$(real_package)
    (cd "$work" && apt-get -q -o APT::Sandbox::User=root download "${real:-$package}") >"$work/apt.log" 2>&1
}
# Lists that are older than the mirror name packages that are gone: one more try with fresh ones.
fetch || { apt-get -q -o DPkg::Lock::Timeout=300 update >"$work/update.log" 2>&1 && fetch; } ||
    cannot "the kernel package $package cannot be downloaded: $(tail -n 1 "$work/apt.log")"
dpkg -x "$work"/linux-image-*.deb "$work/k"
version=$(ls "$work/k/lib/modules")
depmod -b "$work/k" "$version" 2>/dev/null || true

# QEMU starts an uncompressed ELF kernel through its PVH entry; unpacking vmlinuz under emulation would take seconds at
# every boot. The payload begins at its magic number; the length of the trailer does not matter to the tools.
elf() { [ "$(head -c 4 "$1" 2>/dev/null | tail -c 3)" = ELF ]; }
vmlinuz=$work/k/boot/vmlinuz-$version
unpack() {
    local at
    for at in $(LC_ALL=C grep -obUaP "$1" "$vmlinuz" | cut -d: -f1 | head -n 4); do
        tail -c +$((at + 1)) "$vmlinuz" | "${@:2}" >"$work/kernel" 2>/dev/null || true
        if elf "$work/kernel"; then return 0; fi
    done
    return 1
}
unpack '\xfd7zXZ\x00' xz -dcq --single-stream || unpack '\x28\xb5\x2f\xfd' zstd -dcq ||
    cp "$vmlinuz" "$work/kernel"

root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,modules,host,scratch,new}
cp "$busybox" "$root/bin/busybox"
install -m 755 "$here/guest_init.sh" "$root/init"
number=100
for m in $modules; do
    modprobe -d "$work/k" -S "$version" --show-depends "$m" ||
        cannot "kernel $version of $package has no module $m; the package must be one with rdma_rxe"
done >"$work/depends"
awk '$1 == "insmod" && !seen[$2]++ { print $2 }' "$work/depends" >"$work/order"
while read -r file; do
    number=$((number + 1))
    name=$root/modules/$number-$(basename "$file")
    case $file in
    *.xz) xz -dc "$file" >"${name%.xz}" ;;
    *.zst) zstd -dcq "$file" >"${name%.zst}" ;;
    *) cp "$file" "$name" ;;
    esac
done <"$work/order"
(cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet | gzip -1) >"$work/initramfs"

mkdir -p "$out"
mv "$work/initramfs" "$out/initramfs"
mv "$work/kernel" "$out/kernel"
echo "$version" >"$out/version"
