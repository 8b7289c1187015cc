"""The command `oar`: `oar train method=oar_g` is `python -m experiments.train method=oar_g`, from any folder."""

import sys

from oar.command_line.exit_codes import explain_errors
from oar.command_line.programs import about, name_of, programs, start

USAGE = """\
usage: oar COMMAND [KEY=VALUE ...], e.g. oar train method=oar_g learner.steps=20

{commands}

oar COMMAND --help says what a command takes. The beginning of a name will do: oar inspect.
TAB completes commands, groups, keys and choices after: eval "$(oar completion bash)" (or zsh)
"""


def main() -> None:
    """Start the program that is named, in place of this process; without a name, list them."""
    with explain_errors():
        match sys.argv[1:]:
            case [] | ["-h" | "--help"]:
                commands = [f"  {name:16}  {about(file)}" for name, file in programs().items()]
                print(USAGE.format(commands="\n".join(commands)), end="")
            case ["completion", *arguments]:
                from oar.command_line.completion import complete  # loads Hydra

                complete(arguments)
            case [name, *arguments]:
                start(name_of(name), arguments)


if __name__ == "__main__":
    main()
