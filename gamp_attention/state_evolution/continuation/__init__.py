"""Branches of fixed points as functions of a parameter: continuation, ends and crossings."""

from gamp_attention.state_evolution.continuation.crossings import root_on_rules
