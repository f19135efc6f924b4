"""Results of an emulation: JSON lines, and what they say when paired with the failure-free run of the same seed."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from recoup.emulate.runs import NO_FAILURES, RunKey

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One strategy at one budget, over seeds, against the failure-free run of the same seed and order."""

    strategy: str
    pls_budget: float
    num_seeds: int
    auc_drop: float
    """Mean over seeds of AUC without failures - AUC with; positive = worse."""
    auc_drop_error: float
    """Standard error of that mean; NaN for one seed."""
    log_loss_rise: float
    auc: float
    pls: float
    """Mean of the ledger's PLS."""
    effective_pls: float
    overhead: float
    overhead_formula: float
    pairs: tuple[tuple[float, float], ...]
    """(PLS, AUC drop) of each seed."""

    @property
    def within_one_error(self) -> bool:
        """Whether the drop is at most one standard error above zero."""
        return self.auc_drop <= self.auc_drop_error


def append_record(path: Path, record: Record) -> None:
    """Append one line by one write, so that several processes may share the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a results file, none if it is not there; a line cut by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n") and line.strip()]


def key_of(record: Record) -> RunKey:
    """Return which run a record is of."""
    return RunKey(record["seed"], record["strategy"], record["pls_budget"])


def compare(records: Iterable[Record]) -> list[Comparison]:
    """Pair every run with the failure-free run of its seed; order as first met."""
    runs = [record for record in records if record["kind"] == "run"]
    plain = {record["seed"]: record for record in runs if record["strategy"] == NO_FAILURES}
    groups: dict[tuple[str, float], list[Record]] = {}
    for record in runs:
        if record["strategy"] != NO_FAILURES and record["seed"] in plain:
            groups.setdefault((record["strategy"], record["pls_budget"]), []).append(record)
    return [_compare(name, budget, group, plain) for (name, budget), group in groups.items()]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error (NaN for a single value)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def _compare(name: str, budget: float, group: Sequence[Record], plain: Mapping[int, Record]) -> Comparison:
    def mean(field: str) -> float:
        return math.fsum(record[field] for record in group) / len(group)

    drops = [plain[record["seed"]]["auc"] - record["auc"] for record in group]
    drop, error = mean_and_error(drops)
    return Comparison(
        strategy=name,
        pls_budget=budget,
        num_seeds=len(group),
        auc_drop=drop,
        auc_drop_error=error,
        log_loss_rise=mean("log_loss") - math.fsum(plain[r["seed"]]["log_loss"] for r in group) / len(group),
        auc=mean("auc"),
        pls=mean("pls"),
        effective_pls=mean("effective_pls"),
        overhead=math.fsum(record["overhead"]["total"] for record in group) / len(group),
        overhead_formula=mean("overhead_formula"),
        pairs=tuple((record["pls"], d) for record, d in zip(group, drops, strict=True)),
    )
