"""Who has arrived, who is missing, who has died: kept without MPI and without a network, before the ranks have met."""
