"""The command `gamp-attention fit`: from a file of the user's arrays to weights."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from gamp_attention._core.files import write_aside
from gamp_attention.cli.options import add_l1, chosen_penalty
from gamp_attention.cli.output import check_target, chosen, report
from gamp_attention.data.fields import local_fields
from gamp_attention.data.loading import load_dataset, load_weights
from gamp_attention.gamp.run import run_gamp
from gamp_attention.models.starts import STARTS


def add_fit(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `fit`."""
    found = commands.add_parser("fit", help="GAMP on your own arrays, with the exact risk")
    found.add_argument("data", metavar="DATA.npz", help="arrays tokens (n,L,d), outputs (n,L,d), positions (L,d)")
    found.add_argument("--init", default="random", help="random (default), positional, or an .npz file with weights Q")
    found.add_argument("--rank", type=int, default=1, help="columns of Q (default 1)")
    found.add_argument("--lam", type=float, default=0.01, help="ridge penalty (default 0.01)")
    add_l1(found)
    found.add_argument("--seed", type=int, default=0, help="seed of the start (default 0)")
    found.add_argument("--tol", type=float, default=1e-8, help="bound on the gradient norm (default 1e-8)")
    found.add_argument("--max-iter", type=int, default=10000, help="bound on iterations (default 10000, not met)")
    found.add_argument("--escape", action="store_true", help="leave a saddle of the risk, to a minimum")
    found.add_argument("--out", metavar="FILE.npz", help="result file (default DATA.fit.npz)")
    found.add_argument("--checkpoint", metavar="FILE", help="written now and then, and gone on from if it exists")
    found.add_argument("--checkpoint-every", type=float, default=60.0, metavar="S", help="seconds between (default 60)")
    found.set_defaults(run=_fit)
    return found


def _fit(options: argparse.Namespace) -> int:
    data = load_dataset(options.data, options.lam, options.rank, chosen_penalty(options))
    out = options.out or str(Path(options.data).with_suffix("")) + ".fit.npz"
    check_target("--out", out)
    init = options.init if options.init in STARTS else load_weights(options.init)
    seen: list[Any] = []

    def remember(t: int, state: Any, step: Any) -> None:
        seen[:] = t, state.Q, step

    wanted = chosen(options, "tol", "max_iter", "escape", "seed", "checkpoint", "checkpoint_every")
    try:
        result = run_gamp(data, init, "exact", **wanted, callback=remember)
    except KeyboardInterrupt:
        if not seen:
            raise
        t, Q, step = seen
        found = {"Q": Q, "gradient_norm": step.gradient_norm, "status": "interrupted", "n_iter": t}
        write_aside(out, lambda file: np.savez(file, train_loss=step.train_loss, **found))
        again = f"the weights of iteration {t} are in {out}: --init {out} goes on from there"
        raise KeyboardInterrupt(f"interrupted, {again}") from None
    attention = data.student(local_fields(data.tokens, data.positions, result.Q))
    found = {
        "Q": result.Q,
        **{name: value for name, value in result.overlaps.arrays().items() if value.size},
        "train_loss": result.train_loss,
        "gradient_norm": result.gradient_norm,
        "status": result.status.value,
        "n_iter": result.n_iter,
        "is_minimum": result.is_minimum,
        "lowest_eigenvalue": result.lowest_eigenvalue,
    }
    write_aside(out, lambda file: np.savez(file, attention=attention, **found))
    text = (
        f"{result.message}\ntraining loss {result.train_loss:.8g}, gradient norm {result.gradient_norm:.2g}, "
        f"lowest eigenvalue of the Hessian {result.lowest_eigenvalue:.2g}, "
        f"{result.n_off_global} of {data.n_samples} samples off their global proximal minimum\nresult: {out}"
    )
    told = result.to_dict()
    report(options, text, told | told["overlaps"] | {"result": out})
    return 0 if result.converged else 1
