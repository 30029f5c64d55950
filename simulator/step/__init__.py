"""One step: costs, the step program, the engine, memory, the prediction."""
