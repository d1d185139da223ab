# Completion of kdad's options for bash. Where it offers nothing, files are completed.
_kdad() {
    local current=${COMP_WORDS[COMP_CWORD]} words=""
    case ${COMP_WORDS[COMP_CWORD - 1]} in
    --backend) words='auto cpu cuda' ;;
    --log-level) words='error warning info debug' ;;
    --socket) ;;
    *)
        words='--socket --backend --threads --log-level --quiet --ready-fd --version --help'
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -o default -F _kdad kdad
