"""One package for each agent framework. `workflow.py` is the deterministic half, `worker.py` the other."""
