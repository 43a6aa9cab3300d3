"""Files of networks and weights. Archives of torch are read without running any code in them."""
