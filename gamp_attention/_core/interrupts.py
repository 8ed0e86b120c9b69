"""Ctrl-C while the command line is still being imported: one line, in place of a traceback from within some library.

Nothing has been done then, so the process ends where it is. Imported before anything else; without effect in processes
that only use the package.
"""

import os
import signal
import sys
from typing import Any

COMMAND, MODULE = "gamp-attention", "gamp_attention.cli.main"


def _end(*_: Any) -> None:
    os.write(2, f"{COMMAND}: interrupted before it began: run the same again\n".encode())
    os._exit(130)


def _is_command() -> bool:
    """Whether this process was started as the command line: by its script, or by code that calls its `main`."""
    script = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return script.startswith(COMMAND) or (script == "-c" and any(MODULE in word for word in sys.orig_argv))


def raise_interrupts() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again: from now on there is something to tell."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
