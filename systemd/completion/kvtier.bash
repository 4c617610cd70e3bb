# bash completion for kvtierctl, kvtierd, kvtier-engine and kvtier-warm: what their own --help lists.
_kvtier()
{
    local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} help command="" word
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word == [a-z]* ]] && { command=$word; break; }
    done
    help=$("$program" $command --help 2>/dev/null) || help=$("$program" --help 2>/dev/null)
    help=${help%%$'\n'Examples:*}
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$(grep -oE '^ +(-[a-z],)?--[a-z-]+' <<< "$help" | grep -oE -- '--[a-z-]+')" \
            -- "$current"))
    elif [[ -z $command && $help == *$'\n'Subcommands:* ]]; then
        COMPREPLY=($(compgen -W "$(sed -nE '/^Subcommands:/,$s/^  ([a-z][a-z-]*) .*/\1/p' <<< "$help")" \
            -- "$current"))
    fi
}
complete -o bashdefault -o default -F _kvtier kvtierctl kvtierd kvtier-engine kvtier-warm
