"""What `ga.<tab>` shows, where all other names are, and what is said of names that nobody knows."""

import re
from pathlib import Path

import pytest

import gamp_attention as ga
from validation._tools.names import EVERY, ROOMS

API = (Path(__file__).parent.parent / "docs" / "api.md").read_text()


def test_what_most_need_fits_on_a_screen():
    shown = [name for name in dir(ga) if not name.startswith("_")]
    assert len(shown) < 60
    assert len(set(shown)) == len(shown)
    assert {*ga.__all__, *ROOMS} - {"__version__"} <= set(shown)


@pytest.mark.parametrize("name", EVERY)
def test_each_name_is_in_one_room_and_the_package_answers_to_it(name):
    rooms = [room for room, names in ROOMS.items() if name in names]
    assert len(rooms) == 1
    assert getattr(getattr(ga, rooms[0]), name) is getattr(ga, name)


def test_sections_of_the_reference_say_where_their_names_are():
    sections = re.findall(r"\n-+\n\n(In [^\n]*)\n(.*?)(?=\n[A-Z][^\n]*\n-+\n|```$)", API.strip(), flags=re.DOTALL)
    told = {name: re.findall(r"``ga\.(\w+)``", where) for where, body in sections for name in
            re.findall(r"^   (\w+)$", body, flags=re.MULTILINE)}  # fmt: skip
    assert set(told) == set(EVERY)
    assert [name for name, rooms in told.items() if not any(name in ROOMS[room] for room in rooms)] == []


def test_the_nearest_name_is_suggested():
    with pytest.raises(AttributeError, match=r"no attribute 'run_gmap'; did you mean 'run_gamp'\?"):
        _ = ga.run_gmap
    with pytest.raises(AttributeError, match=r"did you mean 'power_law_spectrum'\?"):
        _ = ga.powerlaw_spectrum
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        _ = ga.zzz
    assert not hasattr(ga, "__wrapped__")
