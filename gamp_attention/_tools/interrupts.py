"""Handling of Ctrl-C during compilation and long calls, in which libraries may ignore it, so that it is sent again."""

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RESEND_AFTER = 0.05  # seconds after which an interrupt that a library has dropped is sent again


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
    pressed, dropped, previous_hook = False, list[threading.Timer](), sys.unraisablehook
    # a signal to the main thread also ends its system calls; Windows has none, and there the next instruction ends
    send = getattr(signal, "pthread_kill", lambda *_: _thread.interrupt_main())

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    def report(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            previous_hook(unraisable)
            return
        dropped.append(threading.Timer(RESEND_AFTER, send, (threading.main_thread().ident, signal.SIGINT)))
        dropped[-1].daemon = True
        dropped[-1].start()

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
        for timer in dropped:
            timer.cancel()
    if dropped:
        raise KeyboardInterrupt
