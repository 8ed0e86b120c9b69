"""How samples are seen: the posterior of teacher fields given the targets or labels, for each kind of teacher."""
