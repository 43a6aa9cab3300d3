"""Reading at the speed of the cores: blocks decompressed by a library, the rest in compiled code where it is there."""
