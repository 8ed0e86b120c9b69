"""The distribution of given tokens, estimated from data, for predictions by state evolution."""
