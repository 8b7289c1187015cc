# TAB for `python -m experiments.NAME` and `python experiments/NAME.py`: programs, groups, choices and keys.
#   source experiments/completion.bash
_oar_complete() {
    local line=${COMP_LINE:0:COMP_POINT} word found start=
    local program='^([^ ]+) +(-m +experiments\.|[^ ]*experiments/)([a-z0-9_]+)(\.py)? +(.*)$'
    word=${line##* }
    if [[ $line =~ $program ]]; then
        found=$(COMP_LINE="python x.py ${BASH_REMATCH[5]}" "${BASH_REMATCH[1]}" -m oar.command_line.completion "${BASH_REMATCH[3]}" 2>/dev/null)
        compopt -o nospace
    elif [[ $line =~ -m\ +experiments\.[a-z0-9_]*$ ]]; then
        found=$(printf '%s\n' conf/*.yaml | sed 's|conf/|experiments.|; s|\.yaml$||')
    fi
    # Readline completes what stands after the last break of its own, of which `=` is one.
    [[ $COMP_WORDBREAKS == *=* ]] && start=${word%"${word##*=}"}
    COMPREPLY=($(compgen -W "$found" -- "$word"))
    COMPREPLY=("${COMPREPLY[@]#"$start"}")
}
complete -o default -F _oar_complete python python3
