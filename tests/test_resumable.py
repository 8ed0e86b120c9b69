"""Rows of validation scripts are stored completely or not at all, once, and also if processes are killed."""

import resource
import signal
from operator import itemgetter

import pytest

from validation._tools.resumable import append_rows, complete_rows, read_rows

KEY = itemgetter("part")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "runs.jsonl"


@pytest.fixture
def plan():
    """Three parts of two rows each, and the list of the parts that were computed."""
    computed = []

    def compute(part):
        computed.append(part)
        return [{"part": part, "row": row, "text": "ω" * 20} for row in range(2)]

    return {part: lambda part=part: compute(part) for part in "abc"}, computed


def test_rows_are_computed_once_and_kept_in_order(file, plan):
    parts, computed = plan
    rows = complete_rows(file, parts, KEY, "parts")
    assert [(row["part"], row["row"]) for row in rows] == [(part, row) for part in "abc" for row in range(2)]
    assert complete_rows(file, parts, KEY, "parts") == rows
    assert computed == ["a", "b", "c"]


@pytest.mark.parametrize("cut", [1, 30, 90, 130])
def test_a_part_that_was_cut_off_is_computed_again(file, plan, cut):
    """The last part has 2 lines of 88 bytes; the end of a line may also be missing in its middle."""
    parts, computed = plan
    rows = complete_rows(file, parts, KEY, "parts")
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    assert KEY(read_rows(file, KEY)[-1]) == "b"
    assert complete_rows(file, parts, KEY, "parts") == rows
    assert file.read_bytes() == whole
    assert computed == ["a", "b", "c", "c"]


def test_parts_that_another_process_stores_meanwhile_are_not_stored_twice(file, plan):
    parts, computed = plan

    def compute_both():  # another process stores "b" before this process, and "c"
        rows = parts["b"]()
        for part in "bc":
            append_rows(file, part, parts[part](), KEY)
        return rows

    rows = complete_rows(file, parts | {"b": compute_both}, KEY, "parts")
    assert [row["part"] for row in rows] == list("aabbcc")
    assert computed == ["a", "b", "b", "c"]


def test_a_full_disk_leaves_no_part_of_a_row(file, plan):
    parts, _ = plan
    append_rows(file, "a", parts["a"](), KEY)
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            append_rows(file, "b", parts["b"](), KEY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert file.read_bytes() == before


def test_a_damaged_line_is_named(file):
    file.write_text('{"part": "a"}\nnot a row\n')
    with pytest.raises(ValueError, match=r"runs.jsonl, line 2: needs a row in JSON, got b'not a row'"):
        read_rows(file, KEY)
