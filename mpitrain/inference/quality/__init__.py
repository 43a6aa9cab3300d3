"""How good a network is: its answers, its errors, and what judges them."""
