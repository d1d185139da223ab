#!/bin/bash
# chroot.sh [DIRECTORY] - the Debian packages of build-package in a bare system: installed, the daemon started by its unit's
# command line with a socket as its unit makes it, jobs run by a user of the group, refused for one outside it, removed,
# purged without a trace. contents.sh makes the packages. The bare system is made by debootstrap, from $DEBIAN_MIRROR, or
# copied from DIRECTORY. Needs root, and systemd-socket-activate; is skipped (77) where something is missing.
set -u
cd "$(dirname "$0")/../.." || exit 1

skip() {
    echo "skipped: $*"
    exit 77
}

fail() {
    echo "FAILED: $*"
    exit 1
}

[ "$(id -u)" = 0 ] || skip "this needs root"
for program in chroot setpriv systemd-socket-activate unshare; do
    command -v "$program" >/dev/null || skip "there is no $program"
done
ls build-package/kdad_*.deb >/dev/null 2>&1 || fail "there are no packages: tests/package/contents.sh makes them"
if [ -z "${KDAD_CHROOT_INSIDE:-}" ]; then # mounts are gone when this ends, however it does
    unshare --mount true 2>/dev/null || skip "a mount namespace cannot be made"
    KDAD_CHROOT_INSIDE=1 exec unshare --mount "$0" "$@"
fi

directory=$(mktemp -d) || exit 1
root=$directory/root
daemon=
# shellcheck disable=SC2317 # called by trap
clean_up() {
    if [ -n "$daemon" ]; then
        kill -9 "$daemon"
        wait "$daemon"
    fi
    umount "$root/proc" && rm -rf --one-file-system "$directory"
} 2>/dev/null
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

# --- the bare system, with the packages that kdad's depend on

depends=$(for package in build-package/*.deb; do dpkg-deb -f "$package" Depends; done | tr ',' '\n' |
    sed 's/ *([^)]*)//g; s/^ *//; s/ *$//; s/^systemd |.*/systemd-standalone-sysusers/' | grep -v kdad | sort -u | paste -sd,)
depends=$depends,systemd-standalone-tmpfiles
if [ -n "${1:-}" ]; then
    cp -a "$1" "$root" || fail "$1 cannot be copied"
else
    command -v debootstrap >/dev/null || skip "there is no debootstrap"
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    debootstrap --variant=minbase --include="$depends" "$suite" "$root" \
        "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$directory/log" 2>&1 || {
        tail -n 5 "$directory/log"
        skip "debootstrap has made no system: no network?"
    }
fi
mount -t proc proc "$root/proc" || fail "/proc cannot be mounted"
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"
}

# as USER COMMAND...: with the user's groups.
as() {
    local user=$1
    shift
    inside setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}

# Every file, link and directory but what dpkg and caches keep, and the accounts.
state() {
    (cd "$root" && find . -xdev -path ./proc -prune -o -path ./var/cache/ldconfig -prune -o -path './var/lib/dpkg/*' -prune -o \
        -path './var/log/*' -prune -o -path './work*' -prune -o -printf '%M %u %g %l %p\n' | sort)
    for file in passwd group shadow gshadow; do
        sort "$root/etc/$file"
    done
}

for user in member outsider; do
    inside useradd --no-create-home "$user" || fail "no user can be made"
done
inside ldconfig
# useradd's copies of the files before; afterwards there will be some whatever is done.
touch "$root"/etc/{passwd,group,shadow,gshadow,subuid,subgid}-
state >"$directory/before"

# --- installed

mkdir "$root/work" && cp build-package/*.deb tests/data/chunk16.safetensors "$root/work" || exit 1
inside sh -c 'dpkg -i /work/*.deb' || fail "the packages are not installed"
inside id kdad || fail "there is no user kdad"
[ "$(stat -c '%a %U' "$root/run/kdad")" = '755 root' ] || fail "/run/kdad: $(stat -c '%a %U' "$root/run/kdad")"
inside usermod --append --groups kdad member || fail "the group kdad takes no member"
for program in kdad kdactl; do
    inside "$program" --version || fail "$program does not run"
done

# --- started by its unit's command line, with its unit's user, on its unit's socket

# setting FILE NAME: the value in a unit.
setting() {
    sed -n "s/^$2=//p" "$root/usr/lib/systemd/system/$1"
}
socket=$root$(setting kdad.socket ListenSequentialPacket)
read -ra command <<<"$(setting kdad.service ExecStart)"
[ "${command[0]}" = /usr/bin/kdad ] || fail "kdad.service starts ${command[0]}"
systemd-socket-activate --seqpacket --listen "$socket" chroot --userspec="$(setting kdad.service User):$(
    setting kdad.service Group)" "$root" "${command[@]}" 2>"$directory/log" &
daemon=$!
while [ ! -S "$socket" ] && [ -d "/proc/$daemon" ]; do
    sleep 0.05
done
chown "$(inside id -u kdad):$(inside id -g kdad)" "$socket"
chmod "$(setting kdad.socket SocketMode)" "$socket"

as member kdactl check /work/chunk16.safetensors || fail "a member of the group is not served: $(cat "$directory/log")"
as outsider kdactl ping 2>"$directory/said" && fail "a user outside the group is served"
grep 'may not be used by this user' "$directory/said" || fail "who is refused is told: $(cat "$directory/said")"
[ "$(stat -c %U "/proc/$daemon")" != root ] || fail "the daemon runs as root"
as member kdactl status | grep "^ *[0-9]* *$(inside id -u member) *kdactl" || fail "the status does not tell of the member"

# The library, by a program that was compiled for it. Here, if there is a compiler.
if command -v cc >/dev/null; then
    multiarch=$(dpkg-architecture -q DEB_HOST_MULTIARCH)
    cc "$root/usr/share/doc/kdad/example.c" -o "$root/work/example" -I "$root/usr/include" \
        -L "$root/usr/lib/$multiarch" -lkdad || fail "the example is not built with libkdad-dev"
    as member /work/example || fail "the example does not run"
fi

kill "$daemon"
wait "$daemon" || fail "kdad ends with $?: $(cat "$directory/log")"
daemon=
rm "$socket"

# --- removed, purged

inside gpasswd --delete member kdad >/dev/null
inside dpkg --remove kdad libkdad-dev libkdad0 || fail "the packages are not removed"
inside id kdad >/dev/null || fail "removing takes the user, whose files may be left"
inside dpkg --purge kdad libkdad-dev libkdad0 || fail "the packages are not purged"
rm -r "$root/work"
inside ldconfig
state >"$directory/after"
diff "$directory/before" "$directory/after" || fail "the system before (<) and after (>) kdad differ"
echo "installed, used, removed and purged without a trace"
