#!/bin/sh
# test_readme.sh BUILD SOURCE - README.md and the programs say the same: its example is client/example.c, and it
# has every option and command that the programs' help has.
set -u

build=$1
source=$2
failed=0

# shellcheck disable=SC2016 # a fence of Markdown
sed -n '/^```c$/,/^```$/p' "$source/README.md" | sed '/^```/d' | diff "$source/client/example.c" - || {
    echo "FAILED: client/example.c (<) and the example in README.md (>) differ"
    failed=1
}

for program in kdad kdactl; do
    for option in $("$build/bin/$program" --help | grep -o -e '--[a-z-]*' | sort -u); do
        grep -q -e "\`${option}[ \`]" "$source/README.md" || {
            echo "FAILED: $program $option is not in README.md"
            failed=1
        }
    done
done
for command in $("$build/bin/kdactl" --help | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' | sort -u); do
    grep -q "kdactl.* $command" "$source/README.md" || {
        echo "FAILED: kdactl $command is not in README.md"
        failed=1
    }
done
exit "$failed"
