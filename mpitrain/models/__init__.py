"""Networks, their initial weights, and the TorchScript files that C++ loads."""
