# What demo.sh and run.sh share: packages that are missing, and the build in build/. Sourced, from any folder;
# leaves the shell in the source folder.
# shellcheck shell=sh

cd "$(dirname "$0")/.." || exit 1

say() {
    printf '%s\n' "$*" >&2
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# has_library HEADER MODULE...: pkg-config or the compiler's usual folders know it.
has_library() {
    header=$1
    shift
    for module; do
        pkg-config --exists "$module" 2>/dev/null && return 0
    done
    [ -e "/usr/include/$header" ] || [ -e "/usr/local/include/$header" ]
}

# Debian packages of what is not there. msgpack-c changed its name: "A|B" is the first of them that exists.
missing_packages() {
    has cc || has gcc || has clang || echo gcc
    [ -e /usr/include/stdio.h ] || echo libc6-dev
    has nm || echo binutils
    has cmake || echo cmake
    has ninja || has make || echo make
    has pkg-config || echo pkg-config
    has_library uv.h libuv || echo libuv1-dev
    has_library msgpack.h msgpack-c msgpack || echo 'libmsgpack-c-dev|libmsgpack-dev'
    has_library cjson/cJSON.h libcjson || echo libcjson-dev
    has_library check.h check || echo check
}

# What the build makes use of and can do without.
optional_packages() {
    has_library systemd/sd-daemon.h libsystemd || echo libsystemd-dev
    has scdoc || echo scdoc
}

# Runs a command as root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

may_install() {
    has apt-get && { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }
}

# install_packages NAME...: with apt-get.
install_packages() {
    [ $# -gt 0 ] || return 0
    say "Installing: $*"
    as_root apt-get -qq update >&2 # one source of several may be away
    chosen=
    for names; do
        for name in $(echo "$names" | tr '|' ' '); do
            if apt-cache show "$name" >/dev/null 2>&1; then
                break
            fi
        done
        chosen="$chosen $name"
    done
    # shellcheck disable=SC2086 # one word a package
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends $chosen >&2 || exit 1
}

# build TARGET...: configures build/ and builds the targets. A build folder keeps the generator that it was made
# with.
build() {
    generator=
    if [ ! -e build/CMakeCache.txt ] && has ninja; then
        generator=Ninja
    fi
    cmake --preset release ${generator:+-G "$generator"} -DKDAD_WERROR="${KDAD_WERROR:-OFF}" >&2 || exit 1
    cmake --build build --parallel "$(nproc)" --target "$@" >&2 || exit 1
}

# Packages that are missing, installed or, where that may not be, named; then the build of the targets.
set_up() {
    missing=$(missing_packages)
    # shellcheck disable=SC2046,SC2086 # one word a package
    if may_install; then
        install_packages $missing $(optional_packages)
    elif [ -n "$missing" ]; then
        say "These packages are missing (by their names in Debian; one of those with | between them):"
        say "    "$missing
        say "Install them and run this again."
        exit 1
    fi
    build "$@"
}
