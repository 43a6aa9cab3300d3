"""Maps of values on any grid: filled cells, triangles or dots, north up."""
