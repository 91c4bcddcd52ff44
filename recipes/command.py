"""How a recipe is called: options from the command line, and what is to be expected going wrong, in one line.

A folder that holds a run, a size that cannot be, a disk that cannot be written to, Ctrl-C: such errors end in one line
that speaks of the command's own options, with exit status 2, or 130 for Ctrl-C. `python -X dev recipes/...` shows the
traceback.
"""

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import tyro

# What the library's arguments are on the command line.
_WORDS = {
    "pass resume=True": "give --resume",
    "resume=True": "--resume",
    "out_dir": "--out",
    "n_hidden": "--hidden",
    "batch_size": "--batch",
    "max_norm": "--clip",
}


def run(main: Callable[[Any], Any], options: type, words: Mapping[str, str] | None = None) -> None:
    """Calls `main` with options read from the command line. `words`: further arguments as options."""
    given = tyro.cli(options, description=sys.modules[main.__module__].__doc__)
    words = _WORDS | dict(words or {})
    try:
        main(given)
    except KeyboardInterrupt as stop:
        _end(str(stop) or "stopped", words, 130)
    except (ValueError, OSError) as error:
        if sys.flags.dev_mode:
            raise
        _end(str(error), words, 2)


def in_words_of_the_command(message: str, words: Mapping[str, str]) -> str:
    """One line, with options for arguments."""
    line = "; ".join(part.strip().rstrip(";") for part in message.splitlines()).replace(":;", ":")
    line = re.sub(r"^fit: ", "", line)
    line = re.sub(r"config\['(\w+)'\]", lambda found: "--" + found[1].replace("_", "-"), line)
    for argument, option in words.items():
        line = re.sub(rf"(?<![\w-]){argument}(?!\w)", option, line)
    return line


def _end(message: str, words: Mapping[str, str], status: int) -> None:
    print(in_words_of_the_command(message, words), file=sys.stderr)
    sys.exit(status)
