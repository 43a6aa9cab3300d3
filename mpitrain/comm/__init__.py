"""Ranks and collectives: the only room that imports mpi4py or torch.distributed."""
