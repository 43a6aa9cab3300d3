"""Networks of whole fields, made of convolutions."""
