"""The fastest settings of the first screen."""

import pandas as pd

from tests.unit.present.conftest import changed, in_table
from workflow_scripts.present.first_screen import _best


def test_of_the_cells_that_are_recommended_in_several_environments_the_fastest_is_shown(report, tmp_path):
    def shown(of):
        return {row["cell_id"] for row in _best(of)}

    table = in_table(report, "recommendations")
    fastest = table[table["role"].eq("best_throughput") & table["gpu"].eq("h200")].iloc[[0]]
    rates = in_table(report, "intervals").query("measure == 'output_tokens_per_s'").set_index("cell_id")["value"]
    of_place = rates[rates.index.str.startswith(fastest["cell_id"].iloc[0].rpartition("/")[0])]
    # The slowest, which another environment recommends, stands before it in the grid.
    slower = fastest.assign(cell_id=of_place.idxmin())
    both = changed(report, tmp_path, recommendations=pd.concat([slower, table], ignore_index=True))
    assert shown(both) == shown(report)
