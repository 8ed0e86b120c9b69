"""Help texts of the command line, for the page that shows them; they come from the parser, so that they are current."""

import contextlib
import io
import os
import re
from unittest import mock

from gamp_attention.extensions.cli.main import main

WIDTH = 84  # characters of a line of help, which fits into a code block of the manual


def capture_help(*words: str) -> str:
    """Return the text that `gamp-attention WORDS --help` prints."""
    printed = io.StringIO()
    width = mock.patch.dict(os.environ, {"COLUMNS": str(WIDTH + 2)})
    with width, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue().rstrip()


def list_commands() -> list[str]:
    """Return the names of the commands, as the general help lists them."""
    return re.findall(r"^ {4}(\w+)", capture_help(), re.MULTILINE)


def build_sections() -> str:
    """Return a section for each command, with its help."""
    parts = [f"```text\n{capture_help()}\n```"]
    for command in list_commands():
        parts += [f"## gamp-attention {command}", f"```text\n{capture_help(command)}\n```"]
    return "\n\n".join(parts) + "\n"
