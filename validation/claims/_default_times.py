"""Times of runs with default settings, as lines of JSON; started by `default_runs --base` in two checkouts."""

import json
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import gamp_attention as ga

spec = spec_from_file_location("instances", Path(__file__).with_name("_random_instances.py"))
instances = module_from_spec(spec)
spec.loader.exec_module(instances)

for seed in range(int(sys.argv[1])):
    for family in instances.FAMILIES:
        data, start, risk = instances.instance(family, seed)
        if seed == 0:
            ga.run_gamp(data, start, risk, max_iter=2)  # compiles
        began = time.process_time()
        found = ga.run_gamp(data, start, risk)
        row = {"family": family, "seed": seed, "seconds": time.process_time() - began, "status": found.status.value}
        print(json.dumps(row | {"n_iter": found.n_iter}), flush=True)
