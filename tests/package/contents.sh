#!/bin/sh
# contents.sh - makes the Debian packages in build-package and looks into them: each has what it must have, and
# lintian finds no error or warning. Needs dpkg-dev, file, lintian, and what the build and the manual pages need.
# Arguments are cmake's.
set -u
cd "$(dirname "$0")/../.." || exit 1

fail() {
    echo "FAILED: $*"
    exit 1
}

rm -f build-package/*.deb
cmake --preset package "$@" || fail "the build is not configured"
cmake --build --preset package --parallel "$(nproc)" || fail "the packages are not made"

# contains PACKAGE FILE...
contains() {
    package=$(echo "build-package/${1}_"*.deb)
    list=$(dpkg-deb --fsys-tarfile "$package" | tar -t) || fail "there is no $package"
    shift
    for name; do
        echo "$list" | grep -qx "\./$name" || fail "$package has no $name"
    done
}

multiarch=usr/lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH)
contains kdad usr/bin/kdad usr/bin/kdactl usr/share/man/man1/kdad.1.gz usr/share/man/man1/kdactl.1.gz \
    usr/share/man/man7/kdad.7.gz usr/share/bash-completion/completions/kdad \
    usr/share/bash-completion/completions/kdactl usr/share/zsh/vendor-completions/_kdad \
    usr/share/zsh/vendor-completions/_kdactl usr/share/man/man5/kdad.conf.5.gz \
    usr/lib/systemd/system/kdad.service usr/lib/systemd/system/kdad.socket usr/lib/systemd/system/kdad@.service \
    usr/lib/systemd/system/kdad@.socket usr/lib/systemd/system/kdad-mps.service usr/lib/systemd/user/kdad.service \
    usr/lib/systemd/user/kdad.socket usr/lib/systemd/user/kdad-mps.service usr/lib/sysusers.d/kdad.conf \
    usr/lib/tmpfiles.d/kdad.conf
contains libkdad0 "$multiarch/libkdad.so.0" "$multiarch/kdad/libkdad-kernels.so"
contains libkdad-dev usr/include/kdad.h "$multiarch/libkdad.so" "$multiarch/pkgconfig/kdad.pc" \
    "$multiarch/cmake/kdad/kdad-config.cmake" usr/share/man/man3/kdad.h.3.gz usr/share/doc/kdad/example.c

lintian --allow-root --fail-on error,warning build-package/*.deb || fail "lintian complains"
echo "$(ls build-package/*.deb): good"
