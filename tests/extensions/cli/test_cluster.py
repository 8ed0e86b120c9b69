"""A dask scheduler that cannot be reached is reported immediately."""

import socket

import pytest

from gamp_attention.extensions.cli.main import main


@pytest.fixture
def deaf():
    """The address of a socket that takes no more connections and refuses none."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        for each in waiting:
            each.close()


def told(address, tmp_path, capsys):
    """Return the message of a sweep at an address that has no scheduler."""
    assert main(["sweep", str(tmp_path / "cells"), "--dask", address]) == 2
    assert not list(tmp_path.iterdir())
    return capsys.readouterr().err


def test_an_address_that_does_not_answer(deaf, tmp_path, capsys):
    message = told(deaf, tmp_path, capsys)
    assert (
        f"--dask: needs the address of a dask scheduler that answers, such as tcp://HOST:8786, got {deaf}: " in message
    )
    assert "no answer within 1.5 s" in message


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://127.0.0.1:9", "refused"),
        ("127.0.0.1:9", "refused"),
        ("tcp://no.such.host.invalid:8786", "no.such.host.invalid"),
        ("tcp://localhost", "got 'tcp://localhost'"),
        ("tcp://localhost:99999", "Port out of range"),
        ("somewhere", "got 'somewhere'"),
    ],
)
def test_an_address_that_is_none(address, why, tmp_path, capsys):
    message = told(address, tmp_path, capsys)
    assert "--dask: needs the address of a dask scheduler that answers" in message
    assert why in message
