"""How one optimiser step is computed: one contract, several ways."""
