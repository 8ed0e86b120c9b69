"""Parser of the command line that suggests the nearest word for a misspelt word."""

import argparse
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """ArgumentParser that suggests the nearest command, word or option if the given word does not exist."""

    def error(self, message: str) -> NoReturn:
        """Print the message with a suggestion, if one is near, and exit with status 2."""
        match = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if match:
            message += suggestion(match[1], (word.strip("' ") for word in match[2].split(",")))
        super().error(message)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse all arguments; an unknown option is an error that suggests the nearest option."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = _subparsers(self).get(getattr(options, "command", None), self)
            near = suggestion(unknown[0].partition("=")[0], command._option_string_actions)
            command.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return options


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the nearest known word, or nothing if none is near."""
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _subparsers(parser: argparse.ArgumentParser) -> dict[Any, Any]:
    """Return the parsers of the commands by name."""
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next((dict(action.choices) for action in actions), {})
