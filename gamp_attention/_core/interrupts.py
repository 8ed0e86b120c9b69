"""Handling of Ctrl-C during the imports of the command line and during the compilation of kernels.

During imports, the process prints one line instead of a traceback and ends, because no work has been done. This module
is imported before all others. It has no effect on processes that use the package without its command line. During
compilation, callbacks of LLVM may ignore the interrupt, so it is raised again.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

COMMAND, MODULE = "gamp-attention", "gamp_attention.cli.main"


def _end(*_: Any) -> None:
    os.write(
        2, f"{COMMAND}: interrupted during start-up, before any work was done; run the same command again\n".encode()
    )
    os._exit(130)


def _is_command() -> bool:
    """Return whether this process was started as the command line, by its script or by code that calls its `main`."""
    script = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return script.startswith(COMMAND) or (script == "-c" and any(MODULE in word for word in sys.orig_argv))


def raise_interrupts() -> None:
    """Restore that Ctrl-C raises KeyboardInterrupt; called when the command line is imported and work begins."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def interruptible_compilation() -> Iterator[None]:
    """Raise KeyboardInterrupt in or after the block if Ctrl-C was pressed in it and a library has ignored that.

    Python prints and drops exceptions in callbacks from C, for example from LLVM: compilation then continues, or ends
    with another error. So each pass of the compiler checks whether Ctrl-C was pressed before it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # no change in a nested block, in another thread, or if the user has set a handler
        return
    from numba.core import event  # imported here because this module is imported before all others

    pressed, previous_hook = False, sys.unraisablehook

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    def report(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            previous_hook(unraisable)

    class Check(event.Listener):
        def on_start(self, event: Any) -> None:
            if pressed:
                raise KeyboardInterrupt

        def on_end(self, event: Any) -> None:
            pass

    signal.signal(signal.SIGINT, press)
    sys.unraisablehook = report
    try:
        with event.install_listener("numba:run_pass", Check()):
            yield
    except Exception:
        if pressed:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = previous_hook
    if pressed:
        raise KeyboardInterrupt


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
