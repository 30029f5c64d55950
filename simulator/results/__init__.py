"""What a predicted step means: reports, signals, advice, sweeps, plots, timelines, explanations."""
