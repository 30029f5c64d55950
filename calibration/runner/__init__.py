"""The second interpreter of the step program: real tables, ids, tensors and collectives on torch.distributed."""
