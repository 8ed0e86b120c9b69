"""Many starts: a few iterations from each, more from the better half, and so on, the best to the end."""

from dataclasses import dataclass, fields
from math import ceil, inf
from typing import Any

import numpy as np

from gamp_attention._core.display import Rows
from gamp_attention.data.dataset import Dataset
from gamp_attention.gamp.checkpoint import Checkpoint
from gamp_attention.gamp.loop import Loop, Plan
from gamp_attention.gamp.result import GampResult, followed
from gamp_attention.gamp.step import GampState
from gamp_attention.results import Overlaps, Result, Status


@dataclass(frozen=True)
class RaceSettings:
    """When starts are left."""

    rounds: tuple[int, ...] = (6, 15, 30)  # iterations after which those of higher loss are left
    share: float = 0.5  # of the starts that goes on
    whole: float = 0.1  # from which on shares are told in whole percents


RACE = RaceSettings()
AGREEMENT = 0.9  # minimum overlap with the selected weights at which weights count as (nearly) the same


@dataclass(frozen=True, eq=False)
class StartRecord(Result):
    """What became of one of several starts of `run_gamp`.

    Attributes
    ----------
    name : "spectral 1" and so on, "random 1" and so on, the name that was asked for, or "given".
    kept : whether the result is that of this start.
    status : how it ended; None where it was left because others had a lower training loss.
    n_iter : iterations of message passing from it.
    train_loss, gradient_norm, overlaps, Q : at its end, or where it was left.
    excess : by how much the training loss is higher than that of the start kept, relative to it: at the same iteration
        where it was left, at the end of both where it was not.
    agreement : overlap of Q with the weights kept, from 0 to 1, which is for the same ones up to what changes nothing.
    """

    name: str
    kept: bool
    status: Status | None
    n_iter: int
    train_loss: float
    gradient_norm: float
    excess: float
    agreement: float
    overlaps: Overlaps
    Q: np.ndarray

    def _rows(self) -> Rows:
        ending = "left" if self.status is None else self.status.value
        rows: Rows = [f"{type(self).__name__}: {self.name}, {ending} after {self.n_iter} iterations"]
        numbers = {
            "ε_t": f"{self.train_loss:.6f}",
            "excess": f"{self.excess:.2g}",
            "agreement": f"{self.agreement:.3f}",
        }
        return rows + [[f"  {name}", text] for name, text in numbers.items()]

    def to_dict(self) -> dict[str, Any]:
        """Plain data of all but Q."""
        return {name: value for name, value in super().to_dict().items() if name != "Q"}


@dataclass(frozen=True)
class Left:
    """A start that others overtook."""

    n_iter: int
    train_loss: float
    gradient_norm: float
    overlaps: Overlaps
    Q: np.ndarray

    def snapshot(self) -> dict[str, Any]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"overlaps": self.overlaps.arrays()}

    @classmethod
    def of(cls, stored: dict[str, Any]) -> "Left":
        """That of a snapshot."""
        numbers = {name: stored[name].item() for name in ("n_iter", "train_loss", "gradient_norm")}
        return cls(**numbers, overlaps=Overlaps(**stored["overlaps"]), Q=stored["Q"])


class Race:
    """Message passing from several starts, of which those with the lowest training losses are followed to the end.

    Parameters
    ----------
    plan : what all have in common.
    starts : names and states.
    n_finish : starts that are followed to the end.
    file : where the race is written to now and then, and goes on from.
    """

    def __init__(self, plan: Plan, starts: list[tuple[str, GampState]], n_finish: int, file: Checkpoint | None) -> None:
        self._plan, self._n_finish, self._file, self._round = plan, n_finish, file, 0
        save = None if file is None else self._save
        self._names = [name for name, _ in starts]
        n = len(starts)
        counted = [f"start {k} of {n} ({name})" if n > 1 else f"{name} start" for k, (name, _) in enumerate(starts, 1)]
        self.loops = {k: Loop(plan, state, save, counted[k]) for k, (_, state) in enumerate(starts)}
        self._left: dict[int, Left] = {}
        self._ends: dict[int, GampResult] = {}
        stored = None if file is None else file.load()
        if stored is not None:
            self._restore(stored)

    def run(self) -> tuple[GampResult, Loop]:
        """The result of lowest training loss among those that converged, or among all, and the loop that it is of."""
        while self._round < len(RACE.rounds) and len(self.loops) > self._n_finish:
            until = RACE.rounds[self._round]
            if until > self._plan.max_iter:  # none is left before its time, so that a longer run can go on
                break
            for loop in self.loops.values():
                loop.run(until)
            if all(
                loop.descends for loop in self.loops.values()
            ):  # the losses of the starts do not predict the final losses
                break
            go_on = max(self._n_finish, ceil(RACE.share * len(self.loops)))
            if self._round == len(RACE.rounds) - 1:
                go_on = self._n_finish
            for k in sorted(self.loops, key=self._loss)[go_on:]:
                loop = self.loops.pop(k)
                overlaps, norm, loss = loop.record.last
                self._left[k] = Left(loop.t, loss, norm, overlaps, loop.seen)
            self._round += 1
        cut = [loop.run(self._plan.max_iter) is None for loop in self.loops.values()]
        if any(cut) and self._file is not None:  # what is saved knows of none that max_iter has ended
            self._save()
        self._ends = {k: followed(self._plan, loop) for k, loop in self.loops.items()}
        best = min(self._ends, key=lambda k: (not self._ends[k].converged, _number(self._ends[k].train_loss)))
        return self._ends[best], self.loops[best]

    def _loss(self, k: int) -> float:
        return _number(self.loops[k].record.last[2])

    def records(self, kept: GampResult, loop: Loop) -> tuple[StartRecord, ...]:
        """What became of every start, the result being `kept`."""
        found = []
        for k, name in enumerate(self._names):
            end: Any = self._left.get(k) or self._ends[k]
            mine = self.loops.get(k) is loop
            end = kept if mine else end
            about = {name: getattr(end, name) for name in ("n_iter", "train_loss", "gradient_norm", "overlaps", "Q")}
            curve = kept.history.train_loss  # which may end before others are left
            beside = curve[min(end.n_iter, len(curve)) - 1] if k in self._left else kept.train_loss
            compared: dict[str, Any] = {
                "excess": float(end.train_loss / beside - 1) if beside else 0.0,
                "agreement": 1.0 if mine else agreement_of(self._plan.data, end.Q, kept.Q),
            }
            found.append(StartRecord(name, mine, getattr(end, "status", None), **compared, **about))
        return tuple(found)

    def _save(self) -> None:
        assert self._file is not None
        self._file.save(self._snapshot)

    def _snapshot(self) -> dict[str, Any]:
        loops = {str(k): loop.snapshot() for k, loop in self.loops.items() if loop.t > 0}
        left = {str(k): left.snapshot() for k, left in self._left.items()}
        return {"round": self._round, "loops": loops, "left": left}

    def _restore(self, stored: dict[str, Any]) -> None:
        self._round = int(stored["round"])
        self._left = {int(k): Left.of(left) for k, left in stored.get("left", {}).items()}
        self.loops = {k: loop for k, loop in self.loops.items() if k not in self._left}
        for k, snapshot in stored["loops"].items():
            self.loops[int(k)].restore(snapshot)


def agreement_of(data: Dataset, Q: np.ndarray, other: np.ndarray) -> float:
    """The overlap of two weights (d, r), from 0 to 1: of the best of all signs and rotations that change nothing."""
    size = np.linalg.norm(Q) * np.linalg.norm(other)
    if not (size > 0 and np.isfinite(size)):
        return float(np.array_equal(Q, other))
    parts, student = data.student.parts, data.student
    if student.rotations:
        by_part = [np.stack(np.split(each, parts, axis=1)).reshape(-1, data.rank // parts) for each in (Q, other)]
        return float(np.linalg.svd(by_part[0].T @ by_part[1], compute_uv=False).sum() / size)
    along = float(np.sum(Q * other) / size)
    return abs(along) if student.even else max(along, 0.0)


def told(records: tuple[StartRecord, ...]) -> str:
    """Return sentences on the starts: the selected start, how many agree with it, and the losses of the others."""
    name = next(record.name for record in records if record.kept)
    others = [record.excess for record in records if record.agreement < AGREEMENT]
    best, n, agree = f"Best of {len(records)} starts: {name!r}.", len(records), len(records) - len(others)
    if not others:
        return f"{best} All {n} gave (nearly) the same weights."
    weights = f"{agree} of {n} gave (nearly) the same weights" if agree > 1 else "No other start gave the same weights"
    low, high = _percent(min(others)), _percent(max(others))
    span = low if low == high else f"{low} to {high}"
    rest = f"the other {len(others)}" if len(others) > 1 else "the other one"
    if min(others) < 0:  # of iterates that are not critical points yet
        return f"{best} {weights}; the training loss of {rest} differed by {span} % when stopped."
    return f"{best} {weights}; {rest} had a training loss {span} % higher when stopped."


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= RACE.whole else f"{100 * share:.2g}"


def _number(loss: float) -> float:
    """A loss to compare with, infinite where it is NaN."""
    return loss if np.isfinite(loss) else inf
