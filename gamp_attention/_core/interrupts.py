"""Ctrl-C while the command line is being imported, and while kernels are compiled.

During imports it gives one line, in place of a traceback from within some library. Nothing has been done then, so the
process ends where it is. This module is imported before anything else; processes that only use the package are not
affected. During compilation, callbacks of LLVM may ignore the interrupt: it is raised again.
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


@contextmanager
def interruptible_compilation() -> Iterator[None]:
    """Raise KeyboardInterrupt in or after the block if Ctrl-C was pressed in it and a library has ignored that.

    Python prints and drops exceptions in callbacks from C, for example from LLVM: compilation then continues, or ends
    with another error. So each pass of the compiler checks whether Ctrl-C was pressed before it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # within a block of this kind, in a thread, or with a handler of the user
        return
    from numba.core import event  # not above: this module is imported before anything else

    pressed, hook = False, sys.unraisablehook

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    def report(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            hook(unraisable)

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
        sys.unraisablehook = hook
    if pressed:
        raise KeyboardInterrupt


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
