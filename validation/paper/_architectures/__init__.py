"""Appendix E.3: changes of the layer over the (α, ω) plane, in a script each."""
