# Completion of kdad's options for bash. Where it offers nothing, files are completed.
_kdad() {
    local current=${COMP_WORDS[COMP_CWORD]} words=""
    case ${COMP_WORDS[COMP_CWORD - 1]} in
    --backend) words='auto cpu cuda' ;;
    --log-level) words='error warning info debug' ;;
    --config | --socket) ;;
    *)
        words='--config --socket --backend --device --threads --max-connections --max-streams --max-buffers'
        words+=' --max-bytes --max-jobs --log-level --quiet --ready-fd --check-config --version --help'
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -o default -F _kdad kdad
