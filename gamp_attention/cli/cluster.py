"""A dask cluster by the address of its scheduler."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gamp_attention._core import check
from gamp_attention._core.extras import require_modules


class ClusterSettings(NamedTuple):
    """How long an answer is waited for, in seconds."""

    reach: float = 1.5  # that something listens at the address
    greet: float = 10.0  # that it greets as a scheduler, which may be busy


CLUSTER = ClusterSettings()


@contextmanager
def dask_executor(address: str) -> Iterator[Any]:
    """An executor on the cluster of a scheduler; an address where nothing listens is told at once."""
    require_listener(address)
    require_modules("--dask", "distributed")
    from distributed import Client

    with Client(address, timeout=CLUSTER.greet) as client:
        yield client.get_executor()


def require_listener(address: str) -> None:
    """Raise unless something listens at the address of a scheduler; those of other protocols than TCP are not tried."""
    needs = "the address of a dask scheduler that answers, such as tcp://HOST:8786"
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme not in ("tcp", "tls"):
        return
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise check.fail("--dask", f"{address}: {error}", needs) from None
    if not host or not port:
        raise check.fail("--dask", address, needs)
    heard = [f"no answer within {CLUSTER.reach:g} s"]

    def reach() -> None:
        try:
            socket.create_connection((host, port), timeout=CLUSTER.reach).close()
            heard[0] = ""
        except TimeoutError:
            pass  # as when nothing is heard at all
        except OSError as error:
            heard[0] = error.strerror or str(error)

    trial = threading.Thread(target=reach, daemon=True)  # looking up a name may take longer than any timeout
    trial.start()
    trial.join(CLUSTER.reach)
    if heard[0]:
        raise check.fail("--dask", f"{address}: {heard[0]}", needs)
