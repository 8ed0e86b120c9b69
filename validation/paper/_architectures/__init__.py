"""Studies of the paper's appendix E.3: changes of the layer over the (α, ω) plane, with a script for each."""
