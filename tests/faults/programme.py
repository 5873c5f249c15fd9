"""All rows, in the order of the table."""

from tests.faults.rows import damaged, differing, frozen, killed, leaving, reset, silent, slow, strangers
from tests.faults.rows.row import Row

ROWS: dict[str, Row] = {
    row.name: row
    for rows in (
        [killed.ROW, reset.ROW, frozen.ROW],
        silent.ROWS,
        slow.ROWS,
        differing.ROWS,
        leaving.ROWS,
        damaged.ROWS,
        strangers.ROWS,
    )
    for row in rows
}
