# Completion of kdactl's commands and options for bash. Where it offers nothing, files are completed.
_kdactl() {
    local current=${COMP_WORDS[COMP_CWORD]} word words=""
    local commands='run check status top trace kill doctor metrics ping bench'
    local options='--socket --spawn --json --out-dir --output --once --seconds --backend --quick --version --help'
    case ${COMP_WORDS[COMP_CWORD - 1]} in
    --socket | --out-dir | --output | --seconds) ;;
    --backend) words='cpu cuda' ;;
    *)
        words="$commands"
        for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do
            [[ " $commands " == *" $word "* ]] && words=""
        done
        [[ $current == -* ]] && words=$options
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -o default -F _kdactl kdactl
