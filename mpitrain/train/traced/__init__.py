"""The traced engine: gradients of any network, recorded once and run without autograd."""
