"""The public surface: what a package exports is what it says it exports."""

import importlib
import pkgutil

import pytest

import recoup

PACKAGES = sorted(module.name for module in pkgutil.iter_modules(recoup.__path__, "recoup.") if module.ispkg)


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_complete_and_importable(name):
    """`__all__` has no name twice, each name exists, and no public name imported there is left out."""
    package = importlib.import_module(name)
    exported = list(package.__all__)
    assert len(exported) == len(set(exported))
    assert [member for member in exported if not hasattr(package, member)] == []
    submodules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    public = {
        member
        for member, value in vars(package).items()
        if not member.startswith("_")
        and member not in {*submodules, "TYPE_CHECKING"}
        and not hasattr(value, "__path__")
    }
    assert public - set(exported) == set()


def test_every_floor_is_a_package():
    """The folders are the floors of ARCHITECTURE.md."""
    floors = "checkpoint cli coding core demo emulate failures jagged log model planner reader recovery report runtime"
    assert {name.removeprefix("recoup.") for name in PACKAGES} == {*floors.split(), "schema", "table", "train"}
