#!/bin/sh
# test_places.sh BUILD SOURCE - where a socket may lie: in a directory that is made if it is missing, under a path as long
# as the system takes. Elsewhere kdad says why not, and leaves nothing.
set -u

build=$1
directory=$(mktemp -d) || exit 1
daemon=
mounted=
# shellcheck disable=SC2317 # called by trap
clean_up() {
    [ -n "$daemon" ] && kill "$daemon" && wait "$daemon"
    [ -n "$mounted" ] && umount "$mounted"
    rm -rf "$directory"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM
mkfifo "$directory/ready" || exit 1

fail() {
    echo "FAILED: $*"
    exit 1
}

# serves PATH: kdad serves there, a client finds it, and both are gone afterwards.
serves() {
    "$build/bin/kdad" --config /dev/null --backend cpu --quiet --socket "$1" --ready-fd 3 3>"$directory/ready" &
    daemon=$!
    read -r _ <"$directory/ready" || fail "kdad does not start on a path of ${#1} bytes"
    "$build/bin/kdactl" --socket "$1" ping >"$directory/said" || fail "no answer on a path of ${#1} bytes"
    kill "$daemon"
    wait "$daemon" || fail "kdad ends with $?"
    daemon=
    [ ! -e "$1" ] || fail "$1 is left"
}

# refuses PATH SENTENCE: kdad does not start there, and says why in these words.
refuses() {
    timeout 60 "$build/bin/kdad" --config /dev/null --backend cpu --quiet --socket "$1" 2>"$directory/said"
    code=$?
    [ "$code" -eq 1 ] || [ "$code" -eq 2 ] || fail "kdad ends with $code on $1"
    grep -q "$2" "$directory/said" || fail "'$2' is not in: $(cat "$directory/said")"
    [ ! -e "$1" ] || fail "$1 is left"
}

# A path of so many bytes.
path_of() {
    awk -v start="$directory/" -v size="$1" 'BEGIN {while (length(start) < size) start = start "x"; print start}'
}

serves "$directory/one/kdad.sock"
rmdir "$directory/one" || exit 1
serves "$(path_of 107)"
refuses "$(path_of 108)" 'path has 108 bytes, but may have at most 107'
refuses "$(path_of 5000)" 'path has 5000 bytes'
refuses "$directory/one/two/kdad.sock" 'its directory cannot be made or opened: No such file or directory'
: >"$directory/file"
refuses "$directory/file/kdad.sock" 'its directory cannot be made or opened: Not a directory'

# Root may write everywhere but on what is mounted so.
mkdir "$directory/fixed" || exit 1
if mount -t tmpfs -o ro none "$directory/fixed" 2>/dev/null; then
    mounted=$directory/fixed
    refuses "$directory/fixed/kdad.sock" 'cannot be bound: Read-only file system'
    refuses "$directory/fixed/one/kdad.sock" 'its directory cannot be made or opened: Read-only file system'
elif [ "$(id -u)" -ne 0 ]; then
    chmod 500 "$directory/fixed"
    refuses "$directory/fixed/kdad.sock" 'cannot be bound: Permission denied'
    refuses "$directory/fixed/one/kdad.sock" 'its directory cannot be made or opened: Permission denied'
fi
