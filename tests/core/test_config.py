"""Configuration: what is written is read back, and whatever is not declared is refused."""

import tomllib
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoup.core import ConfigError, apply_overrides, from_table, load_config, to_table, to_toml


@dataclass(frozen=True, kw_only=True, slots=True)
class Modulo:
    kind: Literal["modulo"] = "modulo"
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Clamp:
    kind: Literal["clamp"] = "clamp"
    low: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    rate: float = 0.1
    order: Literal["full", "window"] = "full"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    name: str
    dedup: bool = True
    gap: timedelta = timedelta(minutes=30)
    path: Path | None = None
    inner: Inner = field(default_factory=Inner)
    transforms: tuple[Modulo | Clamp, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self):
        if self.name == "forbidden":
            raise ConfigError("name must not be 'forbidden'")


configs = st.builds(
    Outer,
    name=st.text(min_size=1, max_size=5).filter(lambda text: text != "forbidden"),
    dedup=st.booleans(),
    gap=st.integers(1, 10**9).map(lambda milliseconds: timedelta(milliseconds=milliseconds)),
    path=st.none() | st.just(Path("a/b")),
    inner=st.builds(Inner, rate=st.floats(allow_nan=False), order=st.sampled_from(["full", "window"])),
    transforms=st.lists(st.builds(Modulo, size=st.integers(0, 2**40)) | st.builds(Clamp)).map(tuple),
    sizes=st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 9), max_size=3),
)


@given(configs)
def test_config_survives_toml(config):
    """from_table(parse(to_toml(c))) equals c."""
    assert from_table(Outer, tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "a", "chekpoint": 1}, r"unknown key 'chekpoint' in Outer, expected one of"),
        ({}, r"missing key 'name'"),
        ({"name": 3}, r"name: expected str, got 3 \(int\)"),
        ({"name": "a", "dedup": "False"}, r"dedup: expected bool, got 'False'"),
        ({"name": "a", "dedup": 0}, r"dedup: expected bool, got 0"),
        ({"name": "a", "gap": "30"}, r"gap: a duration is a number and a unit"),
        ({"name": "a", "inner": {"order": "none"}}, r"inner: order: expected one of \['full', 'window'\], got 'none'"),
        ({"name": "a", "inner": {"rate": True}}, r"rate: expected float, got True"),
        ({"name": "a", "transforms": [{"kind": "modula"}]}, r"transforms\[0\]: expected kind one of"),
        ({"name": "a", "transforms": [{"kind": "modulo"}]}, r"transforms\[0\]: missing key 'size'"),
        ({"name": "a", "transforms": "modulo"}, r"transforms: expected a list"),
        ({"name": "forbidden"}, r"configuration: name must not be"),
    ],
)
def test_config_refuses(table, message):
    """A wrong key or value is refused with its full path, the value, and what was expected."""
    with pytest.raises(ConfigError, match=message):
        from_table(Outer, table)


def test_overrides_reach_nested_keys(tmp_path):
    """An override is typed as TOML, nested keys are reached, and the file's other keys stay."""
    path = tmp_path / "run.toml"
    path.write_text('name = "a"\n[inner]\norder = "window"\n')
    config = load_config(Outer, path, ["inner.rate=0.5", "dedup=false", "gap=2h", 'name="b c"'])
    expected = Outer(name="b c", dedup=False, gap=timedelta(hours=2), inner=Inner(rate=0.5, order="window"))
    assert config == expected


def test_overrides_leave_the_given_table_alone():
    """apply_overrides returns a copy."""
    table = {"inner": {"rate": 1.0}}
    assert apply_overrides(table, ["inner.rate=2.0"]) == {"inner": {"rate": 2.0}}
    assert table == {"inner": {"rate": 1.0}}


@pytest.mark.parametrize("override", ["inner.rate", "=3", "name.x=1"])
def test_malformed_override_is_refused(override):
    """An override that is not key.path=value, or goes through a value, is refused."""
    with pytest.raises(ConfigError, match="override"):
        apply_overrides({"name": "a"}, [override])


def test_missing_and_broken_files_name_the_path(tmp_path):
    """A missing file and broken TOML give one line with the path."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_config(Outer, tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(ConfigError, match=r"expected TOML in .*bad\.toml"):
        load_config(Outer, tmp_path / "bad.toml")


def test_to_table_leaves_out_none():
    """None is the absence of a key: TOML has no null."""
    assert "path" not in to_table(Outer(name="a"))
