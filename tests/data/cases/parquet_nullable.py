"""Write stations.parquet: columns of numbers that are missing here and there, or stored in another way than floats."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = range(200)
start = datetime(2020, 1, 1, tzinfo=UTC)

table = pa.table(
    {
        "when": pa.array([start + timedelta(hours=row) for row in ROWS], pa.timestamp("us", tz="UTC")),
        "snowing": pa.array([None if row % 10 == 0 else row % 2 == 1 for row in ROWS], pa.bool_()),
        "depth": pa.array([None if row % 20 == 5 else Decimal(row % 4) + Decimal("0.125") for row in ROWS],
                          pa.decimal128(8, 3)),
        "count": pa.array([None if row % 25 == 3 else 7 + 2 * (row % 2) for row in ROWS], pa.int32()),
        "class": pa.array([10 + 10 * (row % 2) for row in ROWS], pa.int16()).dictionary_encode(),
        "temp": pa.array([0.1 * row for row in ROWS], pa.float64()),
    }
)  # fmt: skip
pq.write_table(table, "stations.parquet")
