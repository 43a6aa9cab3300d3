"""Maps of values on any grid: filled cells or triangles, north up."""
