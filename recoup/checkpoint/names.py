"""Names of a run's files: `<run>-g<generation>-n<serial>-s<step>...`; the serial orders them, whatever the step."""


def stem(run_id: str, generation: int, serial: int, step: int) -> str:
    """Return the common beginning of the names of one save."""
    return f"{run_id}-g{generation:04d}-n{serial:08d}-s{step:012d}"


def generation_of(name: str, run_id: str) -> int:
    """Return the generation in a file name of the run."""
    return int(_fields(name, run_id)[0])


def serial_of(name: str, run_id: str) -> int:
    """Return the serial in a file name of the run."""
    return int(_fields(name, run_id)[1][1:])


def belongs(name: str, run_id: str) -> bool:
    """Whether a file name is one of the run's."""
    try:
        serial_of(name, run_id)
    except (ValueError, IndexError):
        return False
    return name.rpartition("/")[2].startswith(f"{run_id}-g")


def _fields(name: str, run_id: str) -> list[str]:
    return name.rpartition("/")[2].removeprefix(f"{run_id}-g").split("-")
