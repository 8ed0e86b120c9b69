"""Compilation time of several comparisons, one after the other in a process, as lines of JSON; for `start_up`."""

import json
import sys
import time

from numba.core import event

import gamp_attention as ga


class Compilation(event.Listener):
    """Processor time within the outermost compilations, and the number of compiled functions."""

    def __init__(self):
        self.depth, self.began, self.seconds, self.functions = 0, 0.0, 0.0, 0

    def on_start(self, event):
        if self.depth == 0:
            self.began = time.process_time()
        self.depth += 1
        self.functions += 1

    def on_end(self, event):
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.process_time() - self.began


def sigmoid_model():
    """Return a model of the user-defined map of the manual."""
    from docs.examples.sigmoid_attention import SigmoidAttention

    return ga.attention_model(student=SigmoidAttention())


def edited_model():
    """Return a model of a changed copy of this map, as after an edit of the user's source."""
    from docs.examples.sigmoid_attention import SigmoidAttention

    contents = dict(vars(SigmoidAttention)) | {"smooth": True}
    return ga.attention_model(student=ga.register_attention(type("Edited", SigmoidAttention.__bases__, contents))())


MODELS = {
    "first": lambda: ga.paper_model(),
    "another attention model": lambda: ga.attention_model(student=ga.DotProductAttention(0.5, causal=True)),
    "another penalty": lambda: ga.paper_model(penalty=ga.ElasticNet(0.008, 0.004)),
    "first generalized linear model": lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1),
    "user-defined attention map": sigmoid_model,
    "the same map, edited": edited_model,
    "another loss": lambda: ga.glm_model(ga.PhaseRetrievalLoss(), ga.LinearLabels(), lam=0.1),
}
recorder = Compilation()
event.register("numba:compile", recorder)
for name in sys.argv[1:] or MODELS:
    before = recorder.seconds, recorder.functions
    began = time.process_time()
    ga.compare(MODELS[name](), d=60, alpha=2.0, rtol=0.1, gd_steps=20, instances=2, branches=["semantic"])
    compiled, functions = recorder.seconds - before[0], recorder.functions - before[1]
    row = {"model": name, "seconds": compiled, "functions": functions, "process": time.process_time() - began}
    print(json.dumps(row), flush=True)
