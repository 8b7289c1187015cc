# TAB for `oar` and for `python -m experiments.NAME`: eval "$(oar completion bash)"
_oar_complete() {
    local line=${COMP_LINE:0:COMP_POINT} word typed before start=
    local -a oar=("${COMP_WORDS[0]}")
    local program='^([^ ]+) +(-m +experiments\.|[^ ]*experiments/)([a-z0-9_]*)(\.py)?( .*)?$'
    if [[ $line =~ $program ]]; then
        oar=("${BASH_REMATCH[1]}" -m oar.command_line)
        typed=${BASH_REMATCH[3]}${BASH_REMATCH[5]}
    elif [[ ${COMP_WORDS[0]##*/} == oar ]]; then
        typed=${line#* }
    else
        return
    fi
    word=${line##* }
    before=${word%"${typed##* }"} # of `experiments.train` what stands before the name
    # Readline completes what stands after the last break of its own, of which `=` is one.
    [[ $COMP_WORDBREAKS == *=* ]] && start=${word%"${word##*=}"}
    COMPREPLY=($(compgen -P "$before" -W "$("${oar[@]}" completion offers "$typed" 2>/dev/null)" -- "${word#"$before"}"))
    COMPREPLY=("${COMPREPLY[@]#"$start"}")
    [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
}
complete -o default -F _oar_complete oar python python3
