"""Branches of fixed points as functions of a parameter: continuation, ends and crossings."""
