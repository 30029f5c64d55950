"""TorchRec's own training step on gloo, recorded and timed, as the outside judge."""
