"""
A sweep on dask
===============

A sweep solves the model at every point (cell) of a grid of parameters and stores each result in a folder. Cells that
are already in the folder are not computed again. The cells can be computed by any executor. This example uses a dask
cluster of two threads in this process; ``Client("tcp://HOST:8786")`` would use a cluster of several machines.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
from distributed import Client, LocalCluster

import gamp_attention as ga

ALPHAS, OMEGAS = [0.8, 1.1, 1.4, 1.7, 2.0], [0.1, 0.3]
COLORS = {"semantic": "C0", "positional": "C1"}

# %%
# State evolution (SE) at all points of a grid, and message passing (GAMP) at some of them. Each finished cell is a
# file. When the same call is repeated, it therefore computes nothing.
asked = [{"method": "SE", "omega": OMEGAS}, {"method": "GAMP", "omega": 0.3, "d": 400, "seed": [0, 1]}]
with TemporaryDirectory() as folder:
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        for attempt in ("first", "again"):
            executor = client.get_executor()
            found = ga.sweep(ga.paper_model(), folder, alpha=ALPHAS, cells=asked, rtol=5e-3, executor=executor)
            print(f"{attempt}: {found.computed} cells computed, {found.reused} kept; {found.counts}")

# %%
# ``found.rows`` contains one row per cell, with numbers, errors, status and versions. Cells with status "lost" are
# points at which the branch does not exist.
for row in found.rows[::4]:
    print(*(f"{row[key]!s:<11}" for key in ("method", "branch", "alpha", "omega", "status")), row["train_loss"])

# %%
# Training losses of both branches: lines are state evolution, and dots are message passing on two instances with
# d = 400 (only for ω = 0.3).
figure, axes = plt.subplots(1, len(OMEGAS), figsize=(9, 4.2), layout="constrained")
for axis, omega in zip(axes, OMEGAS, strict=True):
    for name in ("semantic", "positional"):
        for method, style in (("SE", "-"), ("GAMP", "o")):
            cells = [r for r in found.rows if (r["method"], r["branch"], r["omega"]) == (method, name, omega)]
            cells = [r for r in cells if r["converged"]]
            label = f"{name} branch, {'state evolution' if method == 'SE' else 'message passing'}"
            values = [r["alpha"] for r in cells], [r["train_loss"] for r in cells]
            axis.plot(*values, style, ms=5, color=COLORS[name], label=label if values[0] else None)
    axis.set(title=f"training losses at ω = {omega}", xlabel="samples per dimension α = n/d")
axes[0].set_ylabel("training loss $ε_t$")
figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=2)
