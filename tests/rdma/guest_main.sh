# The second stage in the guest of tests/rdma/guest.sh, on the host's own programs: makes the network and its soft-RoCE
# devices, runs the command in the shared folder, writes its status to the control folder and ends the machine.
#
#   rxe0            10.77.0.1 on a dummy device: loopback
#   rxe1 -- rxe2    10.77.1.1 and 10.77.1.2 on the two ends of a veth wire
#   rxe3 -- rxe4    10.77.2.1 and 10.77.2.2 on another: with rxe1 and rxe2 a node of two devices on each side
control=/run/control
. $control/settings # folder, command, environment

device() { # NUMBER ADDRESS: a netdev that is there, as an RDMA device
    # 4200 leaves room for the headers around RoCE's largest MTU, 4096.
    ip link set rdma"$1" mtu 4200 up
    ip addr add "$2"/24 dev rdma"$1"
    rdma link add rxe"$1" type rxe netdev rdma"$1"
}

# rxe works in the first network namespace only, so both ends of a wire live in one. Traffic between two local addresses
# would take the loopback device, which rxe drops: the rule for local addresses moves behind rules that send it out.
wire() { # ID A ADDRESS_A B ADDRESS_B
    ip link add rdma"$2" type veth peer name rdma"$4"
    for i in "$2" "$4"; do
        sysctl -qw net.ipv4.conf.rdma"$i".accept_local=1 net.ipv4.conf.rdma"$i".rp_filter=0 \
            net.ipv4.conf.rdma"$i".arp_ignore=1 net.ipv4.conf.rdma"$i".arp_announce=2
        ip rule add pref 10 iif rdma"$i" lookup local
    done
    device "$2" "$3"
    device "$4" "$5"
    ip rule add pref 20 from "$3" to "$5" lookup $((100 + $2))
    ip rule add pref 20 from "$5" to "$3" lookup $((100 + $4))
    ip route add "$5" dev rdma"$2" src "$3" table $((100 + $2))
    ip route add "$3" dev rdma"$4" src "$5" table $((100 + $4))
}

network() {
    ip link set lo up
    ip link add rdma0 type dummy
    device 0 10.77.0.1
    sysctl -qw net.ipv4.conf.all.rp_filter=0
    wire 1 1 10.77.1.1 2 10.77.1.2
    wire 2 3 10.77.2.1 4 10.77.2.2
    ip rule add pref 30 lookup local
    ip rule del pref 0
}

(
    set -e
    # What tests pin is the guest's own memory; a test of the limit lowers it.
    ulimit -l unlimited
    ulimit -n 65536
    mkdir -p "$folder"
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=mmap folder "$folder"
    network
    cut -d ' ' -f 1 /proc/uptime >$control/ready
    cd "$folder"
    # bash would take its own "set -e" for the command's.
    exec "${command[@]}"
) </dev/null 2>&1 | cat >/dev/vport0p1 # through cat: the port cannot be opened a second time, as /dev/stderr would
echo "${PIPESTATUS[0]}" >$control/status
sync
echo b >/proc/sysrq-trigger
sleep 30
