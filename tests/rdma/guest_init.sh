#!/bin/busybox sh
# The first process in the guest of tests/rdma/guest.sh: loads the modules that are in the initramfs, puts the host's
# root file system (read-only) under a scratch layer in memory, and goes on there with guest_main.sh.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do
    case $module in
    *-dummy.ko) $b insmod "$module" numdummies=0 ;;
    *) $b insmod "$module" ;;
    esac || echo "rdma guest: $module could not be loaded"
done
share=trans=virtio,version=9p2000.L,msize=262144
$b mount -t 9p -o $share,ro,cache=loose host /host || echo "rdma guest: the host's root cannot be mounted"
$b mount -t tmpfs -o mode=755 tmpfs /scratch
$b mkdir /scratch/upper /scratch/work
$b mount -t overlay -o lowerdir=/host,upperdir=/scratch/upper,workdir=/scratch/work,xino=off overlay /new
for d in proc sys dev; do $b mount --move /$d /new/$d; done
$b mount -t tmpfs -o mode=755 tmpfs /new/run
$b mount -t tmpfs -o mode=1777 tmpfs /new/tmp
$b mkdir -p /new/dev/shm /new/dev/pts /new/run/control
$b mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm
$b mount -t devpts devpts /new/dev/pts
$b ln -s /proc/self/fd /new/dev/fd
$b ln -s /proc/self/fd/0 /new/dev/stdin
$b ln -s /proc/self/fd/1 /new/dev/stdout
$b ln -s /proc/self/fd/2 /new/dev/stderr
$b mount -t 9p -o $share,cache=none control /new/run/control || echo "rdma guest: no control share"
exec $b switch_root /new /bin/bash /run/control/main
