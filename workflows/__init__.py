"""Decide what happens next: the run of one agent and the gate its dangerous calls wait at. Deterministic."""
