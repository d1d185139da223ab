#!/bin/sh
# test_readme.sh BUILD SOURCE - README.md and docs/ say what is so: the example is client/example.c, links lead
# somewhere, commands have the options that they are shown with, and sentences of errors are in the sources.
set -u

build=$1
source=$2
cd "$source" || exit 1
failed=0

fail() {
    echo "FAILED: $*"
    failed=1
}

# shellcheck disable=SC2016 # a fence of Markdown
sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' | diff client/example.c - ||
    fail "client/example.c (<) and the example in README.md (>) differ"

pages=$(ls README.md docs/*.md proto/wire.md kernels/cuda/README.md)
for page in $pages; do
    for link in $(grep -o '](\([^)]*\))' "$page" | tr -d '()]'); do
        case $link in
        *://*) ;;
        *) [ -e "$(dirname "$page")/${link%%#*}" ] || fail "$page: $link leads nowhere" ;;
        esac
    done
done

# Files that docs/architecture.md and its picture name are there, threads have the names that it gives.
# shellcheck disable=SC2016 # code of Markdown
for file in $(grep -o '`[a-z]*/[a-z_/]*\.[ch]`' docs/architecture.md | tr -d '`'); do
    [ -e "$file" ] || fail "docs/architecture.md: there is no $file"
done
for file in $(tr -c 'a-z_.' '\n' <docs/images/architecture.svg | grep '^[a-z_]*[a-z]\.\(c\|h\|cu\)$' | sort -u); do
    [ -n "$(find client daemon kernels proto -name "$file")" ] || fail "docs/images/architecture.svg: there is no $file"
done
# shellcheck disable=SC2016 # code of Markdown
for thread in $(grep -o '`kdad-[a-z]*`' docs/architecture.md | tr -d '`'); do
    grep -rq "pthread_setname_np([^;]*\"$thread\"" daemon kernels || fail "no thread is named $thread"
done

# shown PROGRAM: the command lines of that program in the pages.
shown() {
    grep -hoE -e "^ +([A-Z_]+=[^ ]+ )*$1 [^#]*" -e "\`$1 [^\`]*\`" README.md docs/*.md | grep -o "$1 [^\`]*"
}
for program in kdad kdactl; do
    "$build/bin/$program" --help >"${TMPDIR:-/tmp}/help.$$"
    for option in $(shown "$program" | grep -o -e ' --[a-z][a-z-]*' | sort -u); do
        grep -q -e "$option\b" "${TMPDIR:-/tmp}/help.$$" || fail "$program has no $option"
    done
done
for command in $(shown kdactl | grep -o '^kdactl [a-z][a-z]*' | sed 's/kdactl //' | sort -u); do
    grep -q "^  $command\b" "${TMPDIR:-/tmp}/help.$$" || fail "kdactl has no command $command"
done
rm -f "${TMPDIR:-/tmp}/help.$$"

# Sentences of docs/errors.md: what stands between their dots and colons is in some string of the sources.
strings=$(find client daemon kernels proto -name '*.c' -exec cat {} + | tr '\n' ' ' | sed 's/" *"//g; s/\\"/"/g')
# shellcheck disable=SC2016 # code of Markdown
sed -n 's/^| \(`.*`\) | .*/\1/p' docs/errors.md | grep -o '`[^`]*`' | tr -d '`' | sed 's/…/\n/g; s/: /\n/g' |
    sed 's/^[ :,]*//; s/[ :,]*$//' | grep '...' | sort -u | {
    while read -r part; do
        case $strings in
        *"$part"*) ;;
        *) echo "FAILED: docs/errors.md: no sentence of the sources has '$part'" && failed=1 ;;
        esac
    done
    exit "$failed"
} || failed=1
exit "$failed"
