# TAB for `oar`: eval "$(oar completion zsh)"
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_oar_complete() {
    local -a found=(${(f)"$(${words[1]} completion offers "${words[2,CURRENT-1]} $PREFIX" 2>/dev/null)"})
    compadd -S ' ' -- ${found:#*[=.]}
    compadd -S '' -- ${(M)found:#*[=.]}
}
compdef _oar_complete oar
