"""`fleetmq completion bash|zsh`: print a completion script, generated from the options themselves.

source <(fleetmq completion bash)
fleetmq completion zsh > "${fpath[1]}/_fleetmq"
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from mqtt_broker.cli.errors import DONE

if TYPE_CHECKING:
    from mqtt_broker.cli.commands import Parser

SHELLS: Final = ("bash", "zsh")
_FILES: Final = "FILES"  # in the place of words: complete names of files
_BASH: Final = """\
# Completion of fleetmq for bash: source <(fleetmq completion bash)
_fleetmq() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} path= at
    for ((at = 1; at < COMP_CWORD; at++)); do
        case "$path/${{COMP_WORDS[at]}}" in
            {paths}) path="$path/${{COMP_WORDS[at]}}" ;;
        esac
    done
    case "$path ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    case "$path" in
{words}
    esac
}}
complete -F _fleetmq fleetmq
"""
_ZSH: Final = """\
#compdef fleetmq
# Completion of fleetmq for zsh: fleetmq completion zsh > "${fpath[1]}/_fleetmq"
autoload -U +X bashcompinit && bashcompinit
"""
# zsh loads the file when it completes for the first time: from then on the function above is asked.
_ZSH_END: Final = """\
[[ $funcstack[1] == _fleetmq ]] && _bash_complete -F _fleetmq
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell to write the script for")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    script = bash()
    of_zsh = _ZSH + script.partition("\n")[2] + _ZSH_END
    print(script if args.shell == "bash" else of_zsh, end="")
    return DONE


def bash() -> str:
    """Return the script for bash."""
    from mqtt_broker.cli.commands import COMMANDS, parser_of  # which imports commands by name

    words: dict[str, list[str]] = {"": [*COMMANDS, "--help", "--version"]}
    values: dict[str, str] = {}
    for name in COMMANDS:
        try:
            parser = parser_of(name)
        except ModuleNotFoundError:  # an extra that is not installed: its options are left out
            words[f"/{name}"] = ["--help"]
        else:
            _collect(f"/{name}", parser, words, values)
    return _BASH.format(
        paths="|".join(_quoted(path) for path in words if path),
        values="\n".join(_case(path, found) for path, found in values.items()),
        words="\n".join(_case(_quoted(path), " ".join(found)) for path, found in words.items()),
    )


def _collect(
    path: str, parser: Parser, words: dict[str, list[str]], values: dict[str, str]
) -> None:
    """Collect the words that may stand at a path of subcommands, and the values of its options."""
    found: list[str] = []
    for action in parser.actions():
        if action.nargs == argparse.PARSER and isinstance(action.choices, dict):  # subcommands
            found += action.choices
            for name, below in action.choices.items():
                _collect(f"{path}/{name}", below, words, values)
            continue
        found += action.option_strings or [str(one) for one in action.choices or ()]
        if action.option_strings and action.nargs != 0:
            choices = " ".join(str(one) for one in action.choices or ()) or _FILES
            values |= {_quoted(f"{path} {option}"): choices for option in action.option_strings}
    words[path] = found


def _quoted(text: str) -> str:
    return f'"{text}"'


def _case(pattern: str, words: str) -> str:
    if words == _FILES:
        return f'        {pattern}) COMPREPLY=($(compgen -f -- "$word")); return ;;'
    return f'        {pattern}) COMPREPLY=($(compgen -W "{words}" -- "$word")); return ;;'
