"""The simulator: vLLM's scheduler, a GPU's step times, and what a run of them looks like. It knows no screen."""
