"""Panels of a coordinate, some of them in the square root of the distance from a place where a jump begins."""

from dataclasses import dataclass, fields, replace

import numpy as np

from gamp_attention.state_evolution.rules.line_track import Nodes


@dataclass(frozen=True)
class Panels:
    """Panels of f for each of several outer nodes, f = v where `side` is 0, else f = place + side · v².

    Where a jump begins, at a place f₀, averages of squared derivatives go like |f − f₀|^(−1/2): smooth in v after df is
    written as 2v dv.
    """

    outer: np.ndarray  # (n,) number of the outer node
    place: np.ndarray  # (n,)
    side: np.ndarray  # (n,) −1, 0 or 1
    first: np.ndarray  # (n,) range of v
    last: np.ndarray  # (n,)

    @classmethod
    def between(cls, ends: np.ndarray, n_outer: int) -> "Panels":
        """The same plain panels for each outer node."""
        outer = np.repeat(np.arange(n_outer), len(ends) - 1)
        zero = np.zeros(len(outer))
        return cls(outer, zero, zero, np.tile(ends[:-1], n_outer), np.tile(ends[1:], n_outer))

    def at(self, nodes: Nodes) -> tuple[np.ndarray, np.ndarray]:
        """f at the nodes of each panel, and their weights, both (n, nodes)."""
        v = self._v(nodes)
        width = 0.5 * (self.last - self.first)[:, None]
        return self._f(v), width * nodes.weight * self._slope(v)

    def slope(self, nodes: Nodes) -> np.ndarray:
        """df/dv at the nodes (n, nodes), in units of its mean."""
        slope = self._slope(self._v(nodes))
        return slope / slope.mean(axis=1, keepdims=True)

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest f of each panel."""
        a, b = (self._f(v[:, None])[:, 0] for v in (self.first, self.last))
        return np.minimum(a, b), np.maximum(a, b)

    def chosen(self, which: np.ndarray) -> "Panels":
        """Some of the panels."""
        return Panels(*(getattr(self, each.name)[which] for each in fields(self)))

    def parts(self, where: np.ndarray) -> "Panels":
        """The two parts of each panel: on both sides of where a jump begins, or halves where that is NaN."""
        cut, middle = self.chosen(np.isfinite(where)), 0.5 * (self.first + self.last)
        place = where[np.isfinite(where)]
        pieces = [
            replace(cut, place=place, side=0 * place + side, first=0 * place, last=np.sqrt(np.abs(end - place)))
            for side, end in ((-1, cut.first), (1, cut.last))
        ]
        for part in (replace(self, last=middle), replace(self, first=middle)):
            part = part.chosen(~np.isfinite(where))
            low, high = part.ends()
            plain = part.first > 0  # away from the place
            zero, one = np.where(plain, 0.0, part.place), np.where(plain, 0.0, part.side)
            first, last = np.where(plain, low, part.first), np.where(plain, high, part.last)
            keep = part.side == 0
            pieces.append(
                Panels(
                    part.outer,
                    np.where(keep, part.place, zero),
                    np.where(keep, part.side, one),
                    np.where(keep, part.first, first),
                    np.where(keep, part.last, last),
                )
            )
        return Panels(*(np.concatenate([getattr(each, name.name) for each in pieces]) for name in fields(self)))

    def _v(self, nodes: Nodes) -> np.ndarray:
        return self.first[:, None] + 0.5 * (self.last - self.first)[:, None] * (1 + nodes.x)

    def _f(self, v: np.ndarray) -> np.ndarray:
        side = self.side[:, None]
        return np.where(side == 0, v, self.place[:, None] + side * v**2)

    def _slope(self, v: np.ndarray) -> np.ndarray:
        return np.where(self.side[:, None] == 0, 1.0, 2 * v)
