"""The fitted reuse model: P(reuse) and its decay by class of request, learned from a log.

A small table that explains itself; it travels as JSON beside the shards and drives the policy `fitted`.
"""
