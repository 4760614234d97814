#!/bin/sh
# check_planted.sh PROGRAM TEXT: succeeds when the planted defect in PROGRAM is found, that is, when PROGRAM fails and
# says TEXT. A sanitizer that lets it pass proves nothing about the suites.
set -u

out=$("$1" 2>&1)
status=$?
if [ $status -eq 0 ]; then
    echo "== $1: the planted defect was NOT found"
    exit 1
fi
case $out in
*"$2"*) echo "== $1: planted defect found ($2)" ;;
*)
    echo "== $1 failed, but not with \"$2\":"
    echo "$out"
    exit 1
    ;;
esac
