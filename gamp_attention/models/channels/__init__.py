"""Observation models: the posterior of the teacher's fields given targets or labels, for each kind of teacher."""
