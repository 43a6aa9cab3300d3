"""Tools for data files outside of training: inspection, statistics, conversion, maps, collection in a model."""
