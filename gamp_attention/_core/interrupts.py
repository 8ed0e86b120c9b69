"""Handling of Ctrl-C during the imports of the command line, during its commands and while kernels are compiled.

During imports, the process prints one line instead of a traceback and ends, because no work has been done. This module
is imported before all others. It has no effect on processes that use the package without its command line. During
compilation and during long calls, libraries may ignore the interrupt, so it is sent again.
"""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

COMMAND, MODULE = "gamp-attention", "gamp_attention.cli.main"
RESEND_AFTER = 0.05  # seconds after which an interrupt that a library has dropped is sent again


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
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in or after the block if Ctrl-C was pressed in it and a library has ignored that.

    Python prints and drops exceptions in callbacks from C and of its garbage collector: LLVM then compiles on, and the
    Sobol generator of scipy returns wrong numbers. So a dropped interrupt is sent again, and an error after Ctrl-C
    counts as the interrupt.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # no change in a nested block, in another thread, or if the user has set a handler
        return
    pressed, resend, previous_hook = False, None, sys.unraisablehook
    # a signal to the main thread also ends its system calls; Windows has none, and there the next instruction ends
    send = getattr(signal, "pthread_kill", lambda *_: _thread.interrupt_main())

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    def report(unraisable: Any) -> None:
        nonlocal resend
        if unraisable.exc_type is not KeyboardInterrupt:
            previous_hook(unraisable)
            return
        resend = threading.Timer(RESEND_AFTER, send, (threading.main_thread().ident, signal.SIGINT))
        resend.daemon = True
        resend.start()

    signal.signal(signal.SIGINT, press)
    sys.unraisablehook = report
    try:
        yield
    except Exception:
        if pressed:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = previous_hook
        if resend:
            resend.cancel()
    if resend:
        raise KeyboardInterrupt


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
