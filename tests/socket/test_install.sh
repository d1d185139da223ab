#!/bin/sh
# test_install.sh BUILD SOURCE - what is installed is what a user needs and no more: programs that run, one
# header, a library that exports what the header declares, and the example built by pkg-config and by CMake.
set -u

build=$1
source=$2

if grep -q '^KDAD_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    echo "skipped: programs linked with a plain compiler cannot use a library built with a sanitizer"
    exit 77
fi

directory=$(mktemp -d) || exit 1
daemon=
# shellcheck disable=SC2317 # called by trap
clean_up() {
    if [ -n "$daemon" ]; then
        kill "$daemon"
        wait "$daemon"
    fi
    rm -rf "$directory"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "FAILED: $*"
    exit 1
}

prefix=$directory/usr
cmake --install "$build" --prefix "$prefix" >"$directory/log" || fail "cmake --install"

[ "$(ls "$prefix/include")" = kdad.h ] || fail "installed headers: $(ls "$prefix/include")"
library=$(find "$prefix" -name libkdad.so)
libraries=$(dirname "$library")
[ -e "$libraries/libkdad.so.0" ] || fail "there is no libkdad.so.0 beside $library"

# Exported: the functions that kdad.h marks with KDAD_API, and nothing else.
nm -D --defined-only "$library" | sed 's/.* //' | sort >"$directory/exported"
tr '\n' ' ' <"$prefix/include/kdad.h" | grep -o 'KDAD_API [^;(]*(' | grep -o 'kdad_[a-z_]*(' | tr -d '(' | sort \
    >"$directory/declared"
diff "$directory/declared" "$directory/exported" || fail "declared (<) and exported (>) functions differ"

# The example, by pkg-config.
PKG_CONFIG_PATH=$libraries/pkgconfig
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # options
cc -std=c11 -Wall -Wextra -Werror "$source/client/example.c" -o "$directory/example" \
    $(pkg-config --cflags --libs kdad) "-Wl,-rpath,$libraries" || fail "the example with pkg-config"

# The example, by CMake's find_package.
mkdir "$directory/project" || exit 1
cat >"$directory/project/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.22)
project(example C)
find_package(kdad 0.1 REQUIRED)
add_executable(example $source/client/example.c)
target_link_libraries(example PRIVATE kdad::kdad)
EOF
if ! cmake -S "$directory/project" -B "$directory/project/build" -DCMAKE_PREFIX_PATH="$prefix" >"$directory/log" ||
    ! cmake --build "$directory/project/build" >>"$directory/log"; then
    cat "$directory/log"
    fail "the example with CMake"
fi

# Both against the installed daemon, which kdactl --spawn finds beside itself.
mkfifo "$directory/ready" || exit 1
KDAD_SOCKET=$directory/kdad.sock
export KDAD_SOCKET
"$prefix/bin/kdad" --backend cpu --quiet --ready-fd 3 3>"$directory/ready" &
daemon=$!
read -r _ <"$directory/ready" || fail "the installed kdad does not start"
for example in "$directory/example" "$directory/project/build/example"; do
    said=$("$example") || fail "$example"
    [ "$said" = "first row: dq 0.25, dk 32; last row: dq 16, dk 0.5" ] || fail "the example says: $said"
done
said=$(KDAD_SOCKET=local: "$directory/example") || fail "the example without a daemon"
[ "$said" = "first row: dq 0.25, dk 32; last row: dq 16, dk 0.5" ] || fail "the example without a daemon says: $said"
"$prefix/bin/kdactl" --spawn check "$source/tests/data/chunk16.safetensors" || fail "the installed kdactl --spawn"
