#!/bin/sh
# Installs the Debian packages that Weft needs and this machine lacks; called by `make deps`, `make run` and
# `make test`. Says what it does, asks nothing, does nothing when all is there. With arguments: those packages only.
set -eu

packages='build-essential clang libclang-rt-dev pkg-config
    libconfig-dev libjansson-dev libpcre2-dev libxxhash-dev libsodium-dev libck-dev
    libevent-dev libhttp-parser-dev libssl-dev libibverbs-dev librdmacm-dev liburing-dev
    libcriterion-dev gnuplot-nox curl openssl'
with_node=yes
if [ $# -gt 0 ]; then
    packages="$*"
    with_node=no
fi

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

have() {
    command -v "$1" >/dev/null 2>&1
}

if ! have dpkg-query || ! have apt-get; then
    echo "deps: this is not a Debian system; please install the equivalents of:" $packages
    exit 0
fi

missing=
for p in $packages; do
    # A tool that is on PATH from elsewhere needs no package.
    case $p in clang-tidy | clang-format) if have "$p"; then continue; fi ;; esac
    if ! installed "$p"; then missing="$missing $p"; fi
done
# Node runs some conformance tests. One that is already here stays as it is, whatever its version.
if [ $with_node = yes ] && ! have node; then
    missing="$missing nodejs npm ca-certificates"
fi

if [ -n "$missing" ]; then
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        if ! have sudo; then
            echo "deps: these Debian packages are missing and installing them needs root. As root, run:" >&2
            echo "    apt-get update && apt-get install -y --no-install-recommends$missing" >&2
            exit 1
        fi
        as_root=sudo
    fi
    echo "deps: installing the missing Debian packages:$missing"
    $as_root apt-get update -q || echo "deps: apt-get update failed; trying with the lists that are here" >&2
    if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; then
        echo "deps: apt-get could not install:$missing" >&2
        exit 1
    fi
fi

js=tests/js
if [ $with_node = yes ] && [ -f $js/package.json ]; then
    if ! have node || ! have npm; then
        echo "deps: node without npm is on PATH; the tests in $js will say that they were skipped" >&2
    elif [ ! -f $js/node_modules/.package-lock.json ] ||
        [ -n "$(find $js/package.json $js/package-lock.json -newer $js/node_modules/.package-lock.json 2>/dev/null)" ]
    then
        verb=install
        if [ -f $js/package-lock.json ]; then verb=ci; fi
        echo "deps: npm $verb in $js (packages that only the tests use)"
        # Without the registry the program still builds and the other tests still run.
        if (cd $js && npm $verb --no-audit --no-fund --fetch-retries=1 --fetch-retry-mintimeout=1000); then
            touch $js/node_modules/.package-lock.json
        else
            echo "deps: npm $verb failed; the tests in $js will say that they were skipped" >&2
        fi
    fi
fi
