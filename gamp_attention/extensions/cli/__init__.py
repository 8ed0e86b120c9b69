"""The command `gamp-attention`. Uses: the core and all extensions.

If Ctrl-C is pressed while its modules are imported, the process prints one line instead of a traceback and ends,
because no work has been done. This has no effect on processes that import the package for other purposes.
"""

import os
import signal
import sys
from typing import Any

COMMAND, MODULE = "gamp-attention", "gamp_attention.extensions.cli.main"
INTERRUPTED = "interrupted during start-up, before any work was done; run the same command again"


def _end(*_: Any) -> None:
    os.write(2, f"{COMMAND}: {INTERRUPTED}\n".encode())
    os._exit(130)


def _is_command() -> bool:
    """Return whether this process was started as the command line, by its script or by code that calls its `main`."""
    script = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return script.startswith(COMMAND) or (script == "-c" and any(MODULE in word for word in sys.orig_argv))


def raise_interrupts() -> None:
    """Restore that Ctrl-C raises KeyboardInterrupt; called when the command line is imported and work begins."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
