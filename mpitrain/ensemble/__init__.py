"""Ensembles: many training runs in one launch, with seeds, folds and searches of settings, and their joint results."""
