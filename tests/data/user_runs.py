"""Every kind of user's file trained and predicted for in one launch: `mpirun -np P python user_runs.py CASES.json`.

For each case of the list: a run in memory, the same streamed, a prediction. Exits with the largest exit code.
"""

import json
import sys
from pathlib import Path

from mpitrain.cli.main import main


def run(case: dict) -> int:
    """Train in memory, train streamed, predict; return the first exit code that is not 0."""
    words = ["train", "--data", *case["files"], *case["settings"], "output.progress=lines"]
    folder = case["folder"]
    code = main([*words, f"output.model_dir={folder}/held"])
    if case["streamed"]:
        code = code or main([*words, f"output.model_dir={folder}/streamed", "data.streaming=true"])
    if case["later"]:
        later = ["predict", f"{folder}/held", "--data", case["later"], "--output", f"{folder}/later.nc"]
        code = code or main([*later, "--maps", f"{folder}/maps"])
    return code


if __name__ == "__main__":
    codes = [run(case) for case in json.loads(Path(sys.argv[1]).read_text())]
    sys.exit(max(codes))
