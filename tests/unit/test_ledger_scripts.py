"""The Lua scripts as files: each says what it does, and Python and Lua agree on names and keys."""

import re
from pathlib import Path

import pytest

import tidemill.ledger
from tidemill.ledger.keys import SHAPES, Keys, lua_table
from tidemill.ledger.scripting import names, script, source
from tidemill.models import JobState

HEADER = ("Purpose", "KEYS", "ARGV", "Reply", "States")
PYTHON = "\n".join(path.read_text() for path in Path(tidemill.ledger.__file__).parent.glob("*.py"))
LUA = {name: source(name) for name in [*names(), "common"]}


def code(name: str) -> str:
    """A script without its comments."""
    return re.sub(r"--.*", "", LUA[name])


@pytest.mark.parametrize("name", names())
def test_every_script_starts_with_its_purpose_keys_arguments_reply_and_states(name: str) -> None:
    lines = [line for line in LUA[name].splitlines() if line.startswith("-- ") and not line.startswith("--  ")]
    assert [line[3:].split(":")[0] for line in lines[: len(HEADER)]] == list(HEADER)


@pytest.mark.parametrize("name", names())
def test_every_argument_that_a_script_reads_stands_in_its_header(name: str) -> None:
    header = LUA[name].split("-- ARGV:")[1].split("-- Reply:")[0]
    described = {
        number
        for first, last in re.findall(r"(?<![\w.])(\d+)(?:-(\d+))? [a-z]", header)
        for number in range(int(first), int(last or first) + 1)
    }
    read = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", code(name))}
    assert read <= described


@pytest.mark.parametrize("name", names())
def test_every_script_is_called_and_most_refuse_without_an_epoch(name: str) -> None:
    assert f'"{name}"' in PYTHON
    without = {"acquire", "resign", "begin_epoch", "advance", "mirror", "note_ignored"}
    assert ("if not EPOCH then return NO_EPOCH end" in code(name)) == (name not in without)


@pytest.mark.parametrize("name", sorted(LUA))
def test_no_script_lists_all_keys_or_writes_numbers_that_lose_digits(name: str) -> None:
    assert not re.search(r'"(KEYS|SCAN|FLUSHALL|FLUSHDB)"', code(name))
    assert not re.search(r"tostring\(|\.\. NOW|NOW \.\.", code(name))


@pytest.mark.parametrize("name", sorted(LUA))
def test_scripts_take_keys_from_the_one_table_and_know_only_states_that_exist(name: str) -> None:
    assert set(re.findall(r"\bKEY\.(\w+)", LUA[name])) <= set(SHAPES)
    assert 'KEYS[1] .. "' not in LUA[name]
    states = set(re.findall(r'\bstate (?:==|~=) "(\w*)"', code(name))) - {"", "open", "draining"}
    assert states <= {str(state) for state in JobState}


def test_every_key_shape_is_used_and_no_two_are_the_same() -> None:
    used = set(re.findall(r"\bKEY\.(\w+)", "\n".join(LUA.values())))
    used |= set(re.findall(r'keys\.(?:one|of)\("(\w+)"', PYTHON))
    assert used == set(SHAPES)
    assert len(set(SHAPES.values())) == len(SHAPES)


def test_the_table_of_keys_holds_what_a_script_uses() -> None:
    assert lua_table("KEY.job .. id, KEY.jobs") == 'local KEY = {job = KEYS[1] .. "job:", jobs = KEYS[1] .. "jobs"}'
    with pytest.raises(KeyError):
        lua_table("KEY.nothing")
    assert Keys("x:").of("job", "1") == "x:job:1"


def test_only_scripts_that_bring_new_data_stop_at_the_memory_limit() -> None:
    refused = [name for name in names() if script(name).text.startswith("#!lua\n")]
    assert refused == ["append_log", "note_ignored", "relist", "set_grants", "settle", "submit"]
    assert all(script(name).text.startswith("#!lua flags=allow-oom\n") for name in names() if name not in refused)
