"""Rows moved by compiled code are the rows that numpy moves."""

import numpy as np
import pytest

from mpitrain.data.files.compiled import build, rows

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("is_compiled", [True, False])
def test_rows_to_and_from_places_in_any_order(monkeypatch, is_compiled):
    kernels = build.ReadingKernels()
    kernels._is_tried, kernels._library = True, build.load_library() if is_compiled else None
    monkeypatch.setattr(rows, "KERNELS", kernels)
    random = np.random.default_rng(4)
    shapes = [(count,) for count in range(1, 18)] + [(), (40,), (3, 5, 7), (0,)]
    for shape, dtype in ((shape, dtype) for shape in shapes for dtype in ("f4", "f8", "i2")):
        column = random.integers(-9, 9, (50, *shape)).astype(dtype)
        places = random.integers(0, 50, 31)
        assert rows.gather_rows(column, places).tobytes() == column[places].tobytes()
        assert rows.gather_rows(column[:, ::-1] if shape else column[::-1][::-1], places[:0]).shape == (0, *shape)
        once = random.permutation(50)[:31]
        new = random.integers(-9, 9, (62, *shape)).astype(dtype)[::2]
        expected = column.copy()
        expected[once] = new
        rows.scatter_rows(column, once, new)
        assert column.tobytes() == expected.tobytes()
